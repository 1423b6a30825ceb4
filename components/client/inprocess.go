package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/authentication/user"
)

// errClosed answers every request after Close.
var errClosed = errors.New("in-process client: the apiserver has stopped")

// InProcess is the way from the components of this process to its apiserver.
//
//	New --Open(handler)--> open --Close()--> closed
//
// Requests made before Open wait for it, or for their own context to end.
type InProcess struct {
	url string
	log logrus.FieldLogger

	opened  chan struct{} // closed by Open
	handler http.Handler  // set before opened is closed
	once    sync.Once

	// base is the parent of every request's context on the handler's side. It
	// is not derived from the caller's, whose values (an outer request's audit
	// event, user or trace span) would not cross a network either.
	base  context.Context
	close context.CancelFunc
}

// New returns an InProcess that is not open yet. url is what configurations
// name as the server, https://HOST:PORT of the TLS port: nothing connects to it
// from here, but messages show it and upstream's service resolver answers
// kubernetes.default.svc with it.
func New(url string, log logrus.FieldLogger) *InProcess {
	base, cancel := context.WithCancel(context.Background())
	return &InProcess{url: url, log: log, opened: make(chan struct{}), base: base, close: cancel}
}

// Open lets requests through to h. Only the first call counts.
func (p *InProcess) Open(h http.Handler) {
	p.once.Do(func() {
		p.handler = h
		close(p.opened)
	})
}

// Close ends all requests under way, watches included, and refuses new ones.
func (p *InProcess) Close() { p.close() }

// transport is the http.RoundTripper of one identity.
type transport struct {
	server *InProcess
	user   user.Info
}

var _ http.RoundTripper = (*transport)(nil)

// RoundTrip runs the apiserver's handler for req in a goroutine of its own and
// returns as soon as the handler has sent its header. As over HTTP/2, closing
// the response's body or ending the request's context cancels the context that
// the handler sees; a handler that writes more than the body's window blocks
// until the reader has read; and a panic in the handler becomes a 500, or a
// body that ends with io.ErrUnexpectedEOF when the header was sent already.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	p := t.server
	ctx := req.Context()
	select {
	case <-p.opened:
	case <-p.base.Done():
		closeBody(req)
		return nil, errClosed
	case <-ctx.Done():
		closeBody(req)
		return nil, context.Cause(ctx)
	}
	if p.base.Err() != nil {
		closeBody(req)
		return nil, errClosed
	}
	if req.Header.Get("Upgrade") != "" {
		closeBody(req)
		return nil, fmt.Errorf("in-process client: %s cannot be upgraded to %s: use the TLS port", req.URL.Path, req.Header.Get("Upgrade"))
	}

	handlerCtx, cancel := context.WithCancelCause(withIdentity(p.base, t.user))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	w := newResponseWriter(handlerCtx, func() { cancel(context.Canceled) })
	context.AfterFunc(handlerCtx, func() { w.body.abort(context.Cause(handlerCtx)) })
	go func() {
		defer stop()
		p.serve(w, serverRequest(handlerCtx, req))
		closeBody(req)
		cancel(nil)
	}()

	select {
	case <-w.headerSent:
	case <-handlerCtx.Done():
		// The handler may have answered and ended at the same moment.
		select {
		case <-w.headerSent:
		default:
			// Nobody will read a body that comes from now on.
			w.body.Close()
			if p.base.Err() != nil {
				return nil, errClosed
			}
			return nil, context.Cause(handlerCtx)
		}
	}
	return w.response(req), nil
}

// serve runs the handler and turns what it leaves behind (a panic, no header,
// an open body) into what a client of an HTTP/2 server would see.
func (p *InProcess) serve(w *responseWriter, req *http.Request) {
	defer func() {
		r := recover()
		if r == nil {
			w.finish(nil)
			return
		}
		if r != http.ErrAbortHandler {
			p.log.WithField("panic", r).WithField("stack", string(debug.Stack())).
				Errorf("handler panicked: %s %s", req.Method, req.URL.Path)
		}
		if w.wroteHeader() {
			w.finish(io.ErrUnexpectedEOF)
			return
		}
		http.Error(w, "the apiserver's handler panicked; its log has the stack", http.StatusInternalServerError)
		w.finish(nil)
	}()
	p.handler.ServeHTTP(w, req)
}

// serverRequest is req as the apiserver's filters expect it from an HTTP/2
// connection (see net/http.Request for the fields that only a server sets).
func serverRequest(ctx context.Context, req *http.Request) *http.Request {
	r := req.Clone(ctx)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.Host == "" {
		r.Host = req.URL.Host
	}
	r.RequestURI = req.URL.RequestURI()
	r.RemoteAddr = "127.0.0.1:0"
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	return r
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}
