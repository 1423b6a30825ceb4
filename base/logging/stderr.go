package logging

import (
	"bufio"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"
)

// CaptureStderr logs what libraries write to os.Stderr, as the apiserver's HTTPS server does about clients without
// HTTP/2: outside the log it had no format, and could block on a reader for ever. The Go runtime writes panics past it.
// restore ends the capture: the last line of the process goes to the real stderr.
func CaptureStderr(log *logrus.Logger) (restore func(), err error) {
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
				Component(log, "kubernetes").Info(lines.Text())
			}
		}
		io.Copy(io.Discard, r) // after a line that is too long
	}()
	return func() {
		os.Stderr = stderr
		w.Close()
		select {
		case <-read:
		case <-time.After(time.Second): // a child holds it
		}
	}, nil
}
