package logging

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/reconcile"
)

const (
	// queueLimit is how many bytes wait while a line is being written: some thousands of lines.
	queueLimit = 1 << 20
	// patience is how long Write waits until its line is written.
	patience = 50 * time.Millisecond
	// flushLimit is how long Flush waits for a reader.
	flushLimit = 2 * time.Second
)

// Writer keeps an unread log (a full pipe, a stopped terminal, a journal that hangs) from stopping the process. Its own
// goroutine writes to the output; lines that cannot wait any longer are dropped, counted, and reported in one line when
// the output accepts lines again.
//
// Write returns when the line is written, so that a process that ends after a line loses none; but it waits no longer
// than patience, and not at all once the output has blocked for longer.
type Writer struct {
	out    io.Writer
	format logrus.Formatter // of the line about dropped lines

	wake reconcile.Signal
	quit chan struct{}
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	next    *batch
	began   time.Time // when the output got what it has not taken yet; zero: it waits for more
	dropped int
	err     error // of the last batch dropped because the output failed
	closed  bool
}

// batch is written in one call.
type batch struct {
	text    []byte
	lines   int
	written chan struct{} // closed afterwards
}

func newBatch() *batch { return &batch{written: make(chan struct{})} }

// NewWriter returns a Writer to out for a log in this format. The caller closes it.
func NewWriter(out io.Writer, format string) *Writer {
	f, err := formatter(format)
	if err != nil {
		f = text{} // Setup refuses the format
	}
	w := &Writer{out: out, format: f, next: newBatch(), wake: reconcile.NewSignal(), quit: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

// Write implements io.Writer. It never fails.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	if w.closed || len(w.next.text)+len(p) > queueLimit {
		w.dropped++
		w.mu.Unlock()
		return len(p), nil
	}
	mine := w.next
	mine.text = append(mine.text, p...)
	mine.lines++
	overdue := !w.began.IsZero() && time.Since(w.began) > patience
	w.mu.Unlock()
	w.wake.Send()
	if !overdue {
		mine.wait(patience)
	}
	return len(p), nil
}

// wait waits until the batch is written, and reports whether it is.
func (b *batch) wait(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-b.written:
		return true
	case <-timer.C:
		return false
	}
}

// Flush waits until everything is written, for some seconds at most.
func (w *Writer) Flush() {
	w.mu.Lock()
	last := w.next
	w.mu.Unlock()
	w.wake.Send()
	last.wait(flushLimit)
}

// Close writes what is left, as Flush does, and ends the goroutine as soon as the output allows. Later lines are
// dropped.
func (w *Writer) Close() {
	w.Flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		close(w.quit)
	}
}

func (w *Writer) run() {
	defer close(w.done)
	for {
		select {
		case <-w.wake:
			w.write()
		case <-w.quit:
			w.write()
			return
		}
	}
}

// write writes the queue to the output, and then the line about dropped lines.
func (w *Writer) write() {
	w.mu.Lock()
	now, dropped, why := w.next, w.dropped, w.err
	w.next, w.dropped, w.err = newBatch(), 0, nil
	w.began = time.Now()
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.began = time.Time{}
		w.mu.Unlock()
		close(now.written)
	}()
	if len(now.text) > 0 {
		if _, err := w.out.Write(now.text); err != nil {
			w.drop(dropped+now.lines, err)
			return
		}
	}
	if dropped == 0 {
		return
	}
	if _, err := w.out.Write(lostLine(w.format, dropped, why)); err != nil {
		w.drop(dropped, err)
	}
}

func (w *Writer) drop(lines int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped += lines
	w.err = err
}

// lostLine returns the line about lost lines.
func lostLine(f logrus.Formatter, lines int, why error) []byte {
	reason := "the reader is too slow"
	if why != nil {
		reason = why.Error()
	}
	line, err := f.Format(&logrus.Entry{
		Data:    logrus.Fields{componentField: "kubelith"},
		Time:    time.Now(),
		Level:   logrus.WarnLevel,
		Message: fmt.Sprintf("%d lines of the log were lost: %s", lines, reason),
	})
	if err != nil {
		return nil
	}
	return line
}
