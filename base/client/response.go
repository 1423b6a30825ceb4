package client

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// responseWriter is the http.ResponseWriter that the apiserver's handler writes to. It implements http.Flusher and
// http.CloseNotifier, without which the apiserver's response wrappers refuse to serve a watch
// (k8s.io/apiserver/pkg/endpoints/responsewriter).
type responseWriter struct {
	ctx    context.Context // ends when the client disconnects
	header http.Header
	body   *body

	mu         sync.Mutex
	code       int
	sent       http.Header // header as it was when the status code was written
	headerSent chan struct{}
}

var (
	_ http.Flusher = (*responseWriter)(nil)
	//lint:ignore SA1019 upstream asks for it
	_ http.CloseNotifier = (*responseWriter)(nil)
)

func newResponseWriter(ctx context.Context, cancel func()) *responseWriter {
	return &responseWriter{
		ctx:        ctx,
		header:     http.Header{},
		body:       newBody(cancel),
		headerSent: make(chan struct{}),
	}
}

func (w *responseWriter) Header() http.Header { return w.header }

func (w *responseWriter) WriteHeader(code int) {
	if code >= 100 && code < 200 {
		return // informational: no client here asks for them
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.send(code, nil)
}

// send sends the header, once. Like net/http, it sets the content type if the handler did not; start is the beginning
// of the body.
func (w *responseWriter) send(code int, start []byte) {
	if w.code != 0 {
		return
	}
	w.code, w.sent = code, w.header.Clone()
	if _, named := w.sent["Content-Type"]; !named && len(start) > 0 {
		w.sent.Set("Content-Type", http.DetectContentType(start))
	}
	close(w.headerSent)
}

func (w *responseWriter) wroteHeader() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.code != 0
}

func (w *responseWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.send(http.StatusOK, b)
	code := w.code
	w.mu.Unlock()
	if code == http.StatusNoContent || code == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	return w.body.Write(b)
}

// Flush sends the header; bodies are never held back.
func (w *responseWriter) Flush() { w.WriteHeader(http.StatusOK) }

// CloseNotify implements http.CloseNotifier.
func (w *responseWriter) CloseNotify() <-chan bool {
	c := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { c <- true })
	return c
}

// SetReadDeadline and SetWriteDeadline satisfy http.ResponseController; in memory the request's context is the only
// deadline.
func (w *responseWriter) SetReadDeadline(time.Time) error  { return nil }
func (w *responseWriter) SetWriteDeadline(time.Time) error { return nil }

// finish ends the body: with io.EOF when err is nil.
func (w *responseWriter) finish(err error) {
	w.WriteHeader(http.StatusOK)
	w.body.end(err)
}

func (w *responseWriter) response(req *http.Request) *http.Response {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &http.Response{
		Status:     strconv.Itoa(w.code) + " " + http.StatusText(w.code),
		StatusCode: w.code,
		Proto:      "HTTP/2.0", ProtoMajor: 2,
		Header:        w.sent,
		Body:          w.body,
		ContentLength: -1,
		Request:       req,
	}
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		r.ContentLength = n
	}
	if req.Method == http.MethodHead {
		// The handler may go on writing; its output is dropped.
		w.body.discard()
		r.Body = http.NoBody
	}
	return r
}

// window is how many bytes a handler may write ahead of the reader before it blocks. Go's HTTP/2 client grants 4 MiB
// per stream; in memory that would only cost memory.
const window = 256 << 10

// body is the response's body: a pipe with a bounded buffer.
//
// One handler writes, one client reads. The reader's Close ends the handler's context and makes further writes fail;
// the writer's end lets the reader read what is buffered and then returns the final error; abort ends both sides at
// once, as a reset stream does.
type body struct {
	cancel func() // ends the handler's context

	mu       sync.Mutex
	readable sync.Cond
	writable sync.Cond
	buf      []byte
	off      int
	readErr  error // what Read returns once buf is empty; nil while the handler runs
	writeErr error // what Write returns; nil while there is a reader
	dropped  bool  // writes succeed and go nowhere
}

func newBody(cancel func()) *body {
	b := &body{cancel: cancel}
	b.readable.L, b.writable.L = &b.mu, &b.mu
	return b
}

func (b *body) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	written := 0
	for len(p) > 0 {
		for b.writeErr == nil && !b.dropped && len(b.buf)-b.off >= window {
			b.writable.Wait()
		}
		if b.writeErr != nil {
			return written, b.writeErr
		}
		if b.dropped {
			return written + len(p), nil
		}
		if b.off > 0 && len(b.buf)+len(p) > cap(b.buf) {
			b.buf = b.buf[:copy(b.buf, b.buf[b.off:])]
			b.off = 0
		}
		n := min(len(p), window-(len(b.buf)-b.off))
		b.buf = append(b.buf, p[:n]...)
		p, written = p[n:], written+n
		b.readable.Signal()
	}
	return written, nil
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.off == len(b.buf) {
		if b.readErr != nil {
			return 0, b.readErr
		}
		if len(p) == 0 {
			return 0, nil
		}
		b.readable.Wait()
	}
	n := copy(p, b.buf[b.off:])
	b.off += n
	if b.off == len(b.buf) {
		// An idle watch keeps no buffer: there are a thousand of them.
		b.buf, b.off = nil, 0
	}
	b.writable.Signal()
	return n, nil
}

// Close is called by the reader, at any time and any number of times.
func (b *body) Close() error {
	b.abort(http.ErrBodyReadAfterClose)
	b.cancel()
	return nil
}

// end is called when the handler has returned.
func (b *body) end(err error) {
	if err == nil {
		err = io.EOF
	}
	b.mu.Lock()
	if b.readErr == nil {
		b.readErr = err
	}
	b.mu.Unlock()
	b.readable.Broadcast()
}

// abort makes reads fail with err and writes with io.ErrClosedPipe, at once, and drops the buffer. It does nothing to a
// body that has ended.
func (b *body) abort(err error) {
	b.mu.Lock()
	if b.readErr == nil || err == http.ErrBodyReadAfterClose {
		b.readErr, b.buf, b.off = err, nil, 0
	}
	b.writeErr = io.ErrClosedPipe
	b.mu.Unlock()
	b.readable.Broadcast()
	b.writable.Broadcast()
}

// discard drops all further writes.
func (b *body) discard() {
	b.mu.Lock()
	b.dropped = true
	b.mu.Unlock()
	b.writable.Broadcast()
}
