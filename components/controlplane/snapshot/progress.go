package snapshot

import "io"

// The steps of saving that report their progress.
const (
	StepSave   = "saving"
	StepTest   = "testing"
	StepUpload = "uploading"
)

// Measure returns a reader that reports what is read of a step with so many bytes. report may be nil.
func Measure(r io.Reader, step string, total int64, report func(step string, done, total int64)) io.Reader {
	if report == nil {
		return r
	}
	return &measured{Reader: r, report: func(done int64) { report(step, done, total) }}
}

type measured struct {
	io.Reader
	done   int64
	report func(done int64)
}

// Read implements io.Reader.
func (m *measured) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.done += int64(n)
	m.report(m.done)
	return n, err
}
