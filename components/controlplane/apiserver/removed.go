package apiserver

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/removed"
)

// A node that was removed (base/removed) still has its certificate. Each of its requests is refused by the time at
// which the certificate was issued, and its open watches are ended.

// removals refuses removed nodes.
type removals struct {
	set *removed.Set
	log logrus.FieldLogger

	mu     sync.Mutex
	open   map[string]map[*session]bool // open requests of nodes, by node name
	logged map[string]time.Time         // when a removed node's request was last logged
}

// logEvery is how often that is logged for one node: its agent retries every few seconds.
const logEvery = 10 * time.Minute

// session is a long-running request.
type session struct {
	issued time.Time // when the certificate was issued
	end    context.CancelFunc
}

// followRemovals is called after the informers are created, and before they run.
func (s *Server) followRemovals() error {
	r := &removals{log: s.opts.Log, open: map[string]map[*session]bool{}, logged: map[string]time.Time{}}
	var err error
	r.set, err = removed.Follow(s.shared.Core().V1().Secrets().Informer(), r.end)
	s.removals = r
	return err
}

// Removed reports whether a node was removed since a time.
func (s *Server) Removed(name string, since time.Time) bool {
	return s.removals != nil && s.removals.set.Refuses(name, since)
}

// refuse wraps the authenticators of all requests. It refuses without an error, because upstream would log one for each
// request.
func (r *removals) refuse(all authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := all.AuthenticateRequest(req)
		if !ok || err != nil {
			return response, ok, err
		}
		node, cert := nodeCertificate(req)
		switch {
		case cert == nil || response.User.GetName() != cert.Subject.CommonName: // other credentials in the request take precedence
			return response, ok, err
		case !cache.IsDone(r.set.Synced()): // for a moment, at the start of the API server
			return nil, false, nil
		case r.set.Refuses(node, removed.Issued(cert)):
			if r.mayLog(node) {
				r.log.Warnf("refused node %s from %s: it was removed; stop its agent, or let it join again with a token", node, req.RemoteAddr)
			}
			return nil, false, nil
		}
		return response, ok, err
	})
}

// mayLog reports whether to log the node's request.
func (r *removals) mayLog(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.logged[node]) < logEvery {
		return false
	}
	r.logged[node] = time.Now()
	return true
}

// nodeCertificate returns the certificate that a request shows, and the name of its node. There is none for the node of
// a server, which is in this process.
func nodeCertificate(req *http.Request) (node string, cert *x509.Certificate) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return "", nil
	}
	cert = req.TLS.PeerCertificates[0]
	node, isNode := strings.CutPrefix(cert.Subject.CommonName, names.NodeUserPrefix)
	if !isNode {
		return "", nil
	}
	return node, cert
}

// endable wraps the API to end the long-running requests of a node when it is removed, also those in which it
// impersonates another user. Authentication and impersonation run before it.
func (r *removals) endable(build func(http.Handler, *genericapiserver.Config) http.Handler) func(http.Handler, *genericapiserver.Config) http.Handler {
	return func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if node, cert := nodeCertificate(req); cert != nil {
				if info, ok := apirequest.RequestInfoFrom(req.Context()); ok && c.LongRunningFunc(req, info) {
					ctx, done := r.begin(req.Context(), node, removed.Issued(cert))
					defer done()
					req = req.WithContext(ctx)
				}
			}
			api.ServeHTTP(w, req)
		}), c)
	}
}

// begin records a long-running request, which is over when done is called.
func (r *removals) begin(ctx context.Context, node string, issued time.Time) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{issued, cancel}
	r.mu.Lock()
	if r.open[node] == nil {
		r.open[node] = map[*session]bool{}
	}
	r.open[node][s] = true
	r.mu.Unlock()
	if r.set.Refuses(node, issued) { // since it was authenticated
		cancel()
	}
	return ctx, func() {
		cancel()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open[node], s)
		if len(r.open[node]) == 0 {
			delete(r.open, node)
		}
	}
}

// end ends the long-running requests of a removed node.
func (r *removals) end(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.open[node] {
		if r.set.Refuses(node, s.issued) {
			s.end()
		}
	}
}

// withURL gives a TokenReview's request a URL, because upstream authenticates its token as a request without one:
// authenticators read the path, among them the one that allows anonymous reads of the health.
func withURL(all authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if req.URL == nil {
			req = req.WithContext(req.Context()) // a shallow copy: the caller keeps its own
			req.URL = &url.URL{}
		}
		return all.AuthenticateRequest(req)
	})
}
