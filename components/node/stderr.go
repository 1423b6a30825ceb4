package node

import (
	"bufio"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/components/logging"
)

// captureStderr makes lines of the log of what libraries write to os.Stderr, as the apiserver's HTTPS server does of clients
// that speak no HTTP/2: outside of the log they had no form, and could wait for a reader for ever. The Go runtime writes
// panics past it. restore ends that: the process' last line is for the real one.
func captureStderr(log *logrus.Logger) (restore func(), err error) {
	stderr := os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	os.Stderr = w
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer r.Close()
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if lines.Text() != "" {
				logging.Component(log, "kubernetes").Info(lines.Text())
			}
		}
		io.Copy(io.Discard, r) // after a line that is too long
	}()
	return func() {
		os.Stderr = stderr
		w.Close()
		select {
		case <-read:
		case <-time.After(time.Second): // a child has it
		}
	}, nil
}
