package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// TestAwaitStorage: what informers request is sent again once the storage is back; other requests fail without it.
func TestAwaitStorage(t *testing.T) {
	const all, watch = "/apis/apps/v1/deployments", "/api/v1/namespaces/x/pods?watch=true&resourceVersion=1"
	const old = "?resourceVersion=0"
	for what, c := range map[string]struct {
		method, path string
		fails        int
		there        bool  // the storage, all the time
		early        int32 // how many requests are refused after it is back
		want         int
		sent         int32
	}{
		"list":                            {"GET", all + old, 500, false, 0, 200, 2},
		"list too early":                  {"GET", all + old, 429, false, 2, 200, 4},
		"watch":                           {"GET", watch, 504, false, 0, 200, 2},
		"list that fails in another way":  {"GET", all + old, 500, true, 0, 500, 1},
		"list of what there is not":       {"GET", all + old, 404, false, 0, 404, 1},
		"list that works":                 {"GET", all + old, 200, false, 0, 200, 1},
		"list of what is there now":       {"GET", all, 500, false, 0, 500, 1},
		"one object":                      {"GET", all + "/a" + old, 500, false, 0, 500, 1},
		"create":                          {"POST", all, 500, false, 0, 500, 1},
		"something that is no collection": {"GET", "/readyz", 500, false, 0, 500, 1},
	} {
		t.Run(what, func(t *testing.T) {
			var sent atomic.Int32
			var back atomic.Bool
			p := New("https://127.0.0.1:6443", quiet())
			p.AwaitStorage(func(context.Context) bool {
				if c.there || back.Load() {
					return false
				}
				back.Store(true)
				return true
			})
			p.Open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				sent.Add(1)
				switch n := sent.Load(); {
				case !back.Load():
					w.WriteHeader(c.fails)
				case n <= 1+c.early:
					w.Header().Set("Retry-After", "30")
					w.WriteHeader(http.StatusTooManyRequests)
				}
				io.WriteString(w, "answer")
			}))
			t.Cleanup(p.Close)
			r := do(t, &http.Client{Transport: p.Config("tester").Transport}, t.Context(), c.method, "https://127.0.0.1:6443"+c.path, nil)
			text, err := io.ReadAll(r.Body)
			if r.StatusCode != c.want || sent.Load() != c.sent || string(text) != "answer" {
				t.Errorf("status %d after %d requests, %q, %v; want %d after %d", r.StatusCode, sent.Load(), text, err, c.want, c.sent)
			}
		})
	}
}

// TestAwaitStorageEnds: what waits ends with its context, and with the apiserver.
func TestAwaitStorageEnds(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(p *InProcess, cancel func())
		want error
	}{
		"context":   {func(_ *InProcess, cancel func()) { cancel() }, context.Canceled},
		"apiserver": {func(p *InProcess, _ func()) { p.Close() }, errClosed},
	} {
		t.Run(what, func(t *testing.T) {
			p := New("https://127.0.0.1:6443", quiet())
			waits := make(chan struct{})
			p.AwaitStorage(func(ctx context.Context) bool { close(waits); <-ctx.Done(); return true })
			p.Open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }))
			t.Cleanup(p.Close)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			go func() { <-waits; c.end(p, cancel) }()
			began := time.Now()
			req, err := http.NewRequestWithContext(ctx, "GET", "https://127.0.0.1:6443/api/v1/nodes?watch=true", nil)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := p.Config("tester").Transport.RoundTrip(req); !errors.Is(err, c.want) {
				t.Errorf("%v, %v, want %v", r, err, c.want)
			}
			if time.Since(began) >= patience {
				t.Error("the wait has not ended")
			}
		})
	}
}
