package election

import (
	"context"
	"io"
	"net/http"

	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/client"
)

// Fence returns the clients with which elected components call the API: they read at any time and write only while this
// server leads. A write in flight is cancelled when another server may take over.
func (e *Election) Fence(all client.Identities) client.Identities {
	return client.Configured(all, e.fence)
}

func (e *Election) fence(c *rest.Config) *rest.Config {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return gate{next, e} })
	return c
}

// gate lets reads through at any time, and other requests while the server leads.
type gate struct {
	next     http.RoundTripper
	election *Election
}

// RoundTrip implements http.RoundTripper.
func (g gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if client.IsRead(r) {
		return g.next.RoundTrip(r)
	}
	leads := g.election.leads()
	if leads == nil || leads.Err() != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, errNotLeader
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(leads, func() { cancel(errNotLeader) })
	end := func() { stop(); cancel(nil) }
	answer, err := g.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	answer.Body = &body{answer.Body, end}
	return answer, nil
}

// body ends a request when its response has been read.
type body struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
