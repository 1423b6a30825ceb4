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

// breaker spares pods the deadline of a plugin that hangs, until the host has killed it: after some missed deadlines in a row
// it lets one call through each second.
type breaker struct {
	mu     sync.Mutex
	missed int
	until  time.Time
}

const (
	maxMissed = 3
	pause     = time.Second
)

var errHangs = errors.New("it has missed its last deadlines and is asked once a second")

// allow returns errHangs when the plugin shall not be asked now.
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

// note takes what came of a call. Any answer, an error too, comes from a process that does not hang.
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

// badAnswer is the error for an answer that cannot be used.
func badAnswer(format string, args ...any) error {
	return status.Errorf(codes.OutOfRange, format, args...)
}

// text says an error of a call to a person.
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

// voice writes at most one line a minute: a plugin that fails does so for each pod.
type voice struct {
	log  logrus.FieldLogger
	mu   sync.Mutex
	next time.Time
	kept int
}

func (v *voice) say(line string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now.Before(v.next) {
		v.kept++
		return
	}
	log := v.log
	if v.kept > 0 {
		log = log.WithField("before", v.kept) // failures since the last line
	}
	v.next, v.kept = now.Add(time.Minute), 0
	log.Error(line)
}
