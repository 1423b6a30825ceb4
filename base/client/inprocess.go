package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"kubelith.io/kubelith/base/reconcile"
)

// errClosed answers every request after Close.
var errClosed = errors.New("in-process client: the apiserver has stopped")

// InProcess connects the components of this process to its apiserver.
//
//	New --Open(handler)--> open --Close()--> closed
//
// Requests sent before Open wait for it, or for their own context to end.
type InProcess struct {
	url string
	log logrus.FieldLogger

	opened  chan struct{} // closed by Open
	handler http.Handler  // set before opened is closed
	once    sync.Once
	storage func(context.Context) (waited bool) // see AwaitStorage; set before opened is closed
	back    atomic.Pointer[time.Time]           // when the storage came back; nil: it was never away

	// base is the parent of every request's context on the handler's side. It is not derived from the caller's context,
	// whose values (an outer request's audit event, user or trace span) would not cross a network either.
	base  context.Context
	close context.CancelFunc
}

// New returns an InProcess that is not open yet. url is the server in client configurations, https://HOST:PORT of the
// TLS port: nothing connects to it from here, but messages show it and upstream's service resolver answers
// kubernetes.default.svc with it.
func New(url string, log logrus.FieldLogger) *InProcess {
	// When a backend disappears in mid-answer, a reverse proxy (httputil, in the aggregator) aborts its own answer only
	// below a server, which it detects by this key; otherwise half an answer would look complete.
	base, cancel := context.WithCancel(context.WithValue(context.Background(), http.ServerContextKey, &http.Server{}))
	return &InProcess{url: url, log: log, opened: make(chan struct{}), base: base, close: cancel}
}

// Open passes requests on to h. Only the first call counts.
func (p *InProcess) Open(h http.Handler) {
	p.once.Do(func() {
		p.handler = h
		close(p.opened)
	})
}

// AwaitStorage has the requests of informers that fail wait for the apiserver's storage. await returns true when it is
// back, or its context has ended, and false at once if there is nothing to wait for. Call it before Open.
//
// Informers begin again after each failure, but later and later: a minute after they have failed for one. What they
// keep would be old for that long when the storage is back.
// Source: client-go/tools/cache/reflector.go.
func (p *InProcess) AwaitStorage(await func(context.Context) (waited bool)) { p.storage = await }

// Close ends all running requests, watches included, and refuses new ones.
func (p *InProcess) Close() { p.close() }

// transport is the http.RoundTripper of one identity.
type transport struct {
	server *InProcess
	user   user.Info
}

var _ http.RoundTripper = (*transport)(nil)

// RoundTrip sends a request, and again one that has waited for the storage.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		r, err := t.send(req)
		if err != nil {
			return nil, err
		}
		waited, err := t.server.wait(req, r)
		if err == nil && !waited {
			return r, nil
		}
		r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
}

const (
	// cacheEvery is how often, on average, a request is sent that waits for the apiserver's cache, and cacheWithin how
	// long after the storage came back.
	cacheEvery  = 500 * time.Millisecond
	cacheWithin = 20 * time.Second
)

// wait waits for the storage if an informer's request failed for want of it, and then for the apiserver's cache: the
// longer that was empty, the longer the apiserver asks clients to wait (Retry-After), up to 30 s. It returns false at
// once if there is nothing to wait for.
// Source: apiserver/pkg/storage/cacher/util.go, calculateRetryAfterForUnreadyCache.
func (p *InProcess) wait(req *http.Request, r *http.Response) (waited bool, err error) {
	tooEarly := r.StatusCode == http.StatusTooManyRequests
	if p.storage == nil || !tooEarly && r.StatusCode < http.StatusInternalServerError || !ofInformer(req) {
		return false, nil
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	defer context.AfterFunc(p.base, func() { cancel(errClosed) })()
	if p.storage(ctx) {
		now := time.Now()
		p.back.Store(&now)
		return true, context.Cause(ctx)
	}
	if back := p.back.Load(); !tooEarly || back == nil || time.Since(*back) >= cacheWithin {
		return false, nil
	}
	reconcile.Sleep(ctx, cacheEvery/2+rand.N(cacheEvery))
	return true, context.Cause(ctx)
}

// ofInformer reports whether a request is one of those of an informer: a watch, or a list that may be as old as a
// version. Others list what is there now, and must know soon if they cannot.
func ofInformer(req *http.Request) bool {
	prefixes := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := prefixes.NewRequestInfo(req)
	return err == nil && (info.Verb == "watch" || info.Verb == "list" && req.URL.Query().Get("resourceVersion") != "")
}

// send runs the apiserver's handler for req in its own goroutine and returns as soon as the handler has sent its
// header. As over HTTP/2, closing the response's body or ending the request's context cancels the handler's context; a
// handler that writes more than the body's window blocks until the reader has read; and a panic in the handler becomes
// a 500, or a body that ends with io.ErrUnexpectedEOF if the header was already sent.
func (t *transport) send(req *http.Request) (*http.Response, error) {
	p := t.server
	ctx := req.Context()
	if err := p.admit(ctx, req); err != nil {
		closeBody(req)
		return nil, err
	}

	handlerCtx, cancel := context.WithCancelCause(withIdentity(p.base, t.user))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	w := newResponseWriter(handlerCtx, func() { cancel(context.Canceled) })
	r := serverRequest(handlerCtx, req)
	context.AfterFunc(handlerCtx, func() {
		w.body.abort(p.broken(handlerCtx))
		r.Body.Close() // a handler that waits for more of it stops waiting
	})
	go func() {
		// A panic of the handler is not a panic of the calling component (lifecycle.Label).
		pprof.SetGoroutineLabels(p.base)
		// Its AfterFunc closes the request's body. Deferred, because a handler may end this goroutine (runtime.Goexit).
		defer cancel(nil)
		defer stop()
		p.serve(w, r)
	}()

	select {
	case <-w.headerSent:
	case <-handlerCtx.Done():
	}
	switch {
	case ctx.Err() != nil:
		w.body.Close() // it has no reader
		return nil, context.Cause(ctx)
	case !w.wroteHeader():
		w.body.Close()
		return nil, errClosed
	}
	return w.response(req), nil
}

// admit waits for Open and refuses requests that cannot be served.
func (p *InProcess) admit(ctx context.Context, req *http.Request) error {
	select {
	case <-p.opened:
	case <-p.base.Done():
	case <-ctx.Done():
	}
	switch {
	case p.base.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case req.Header.Get("Upgrade") != "":
		return fmt.Errorf("in-process client: %s cannot be upgraded to %s: use the TLS port", req.URL.Path, req.Header.Get("Upgrade"))
	}
	return nil
}

// broken is the error with which a body ends early. After Close it is the error of a broken connection: upstream's
// watches reconnect after it, and take any other error for one in the data.
func (p *InProcess) broken(handlerCtx context.Context) error {
	if p.base.Err() != nil {
		return io.ErrUnexpectedEOF
	}
	return context.Cause(handlerCtx)
}

// serve runs the handler and turns the outcome (a panic, no header, an open body) into what a client of an HTTP/2
// server would see.
func (p *InProcess) serve(w *responseWriter, req *http.Request) {
	returned := false
	defer func() {
		r := recover()
		if w.ctx.Err() != nil {
			// The handler ended because of that: its answer is incomplete and must not look complete.
			w.body.abort(p.broken(w.ctx))
			return
		}
		if returned {
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
		http.Error(w, "the apiserver's handler panicked; see the stack in its log", http.StatusInternalServerError)
		w.finish(nil)
	}()
	p.handler.ServeHTTP(w, req)
	returned = true
}

// serverRequest is req as the apiserver's filters expect it from an HTTP/2 connection (see net/http.Request for the
// fields that only a server sets, and for those that mean something else there).
func serverRequest(ctx context.Context, req *http.Request) *http.Request {
	r := req.Clone(ctx)
	r.Body = newRequestBody(req.Body)
	if req.ContentLength == 0 && req.Body != nil && req.Body != http.NoBody {
		r.ContentLength = -1
	}
	if r.Host == "" {
		r.Host = req.URL.Host
	}
	r.RequestURI = req.URL.RequestURI()
	r.URL.Scheme, r.URL.Host, r.URL.User = "", "", nil
	r.RemoteAddr = "127.0.0.1:0"
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	return r
}

// requestBody is the client's body as the handler sees it: closed once, by whichever side is first, and unreadable
// afterwards.
type requestBody struct {
	io.ReadCloser
	once   sync.Once
	closed atomic.Bool
}

func newRequestBody(b io.ReadCloser) *requestBody {
	if b == nil {
		b = http.NoBody
	}
	return &requestBody{ReadCloser: b}
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (b *requestBody) Close() (err error) {
	b.once.Do(func() {
		b.closed.Store(true)
		err = b.ReadCloser.Close()
	})
	return err
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}
