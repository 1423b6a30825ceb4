package scheduling

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
)

// breaker is a circuit breaker for a plugin that hangs: after maxMissed deadlines in a row it lets through one call a
// second, so that pods do not wait for each deadline until the host has killed the process.
type breaker struct {
	mu     sync.Mutex
	missed int
	until  time.Time
}

const (
	maxMissed = 3
	pause     = time.Second
)

var errHangs = errors.New("it has missed its last deadlines and is called once a second")

// allow returns errHangs if the plugin must not be called now.
func (b *breaker) allow(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.missed < maxMissed {
		return nil
	}
	if now.Before(b.until) {
		return errHangs
	}
	b.until = now.Add(pause)
	return nil
}

// note records the result of a call. Any answer, even an error, shows that the process does not hang.
func (b *breaker) note(err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !late(err) {
		b.missed = 0
		return
	}
	b.missed++
	b.until = now.Add(pause)
}

func late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}

// badAnswer returns the error for an answer that cannot be used.
func badAnswer(format string, args ...any) error {
	return status.Errorf(codes.OutOfRange, format, args...)
}

// text returns the error of a call as a clause for the operator.
func text(err error) string {
	var missing *plugins.NotRunningError
	switch {
	case errors.As(err, &missing):
		return "it is not running: " + missing.Reason
	case late(err):
		return "it did not answer in time"
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// errorLogger logs at most one line a minute, as a failing plugin fails for each pod.
type errorLogger struct {
	logger logrus.FieldLogger
	mu     sync.Mutex
	next   time.Time
	kept   int
}

func (l *errorLogger) log(line string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		l.kept++
		return
	}
	log := l.logger
	if l.kept > 0 {
		log = log.WithField("before", l.kept) // lines not logged since the last one
	}
	l.next, l.kept = now.Add(time.Minute), 0
	log.Error(line)
}
