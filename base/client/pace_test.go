package client

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// slow answers after a while, and knows how many requests it has at once.
type slow struct {
	takes time.Duration

	mu        sync.Mutex
	now, most int
}

func (s *slow) RoundTrip(*http.Request) (*http.Response, error) {
	s.count(1)
	time.Sleep(s.takes)
	s.count(-1)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func (s *slow) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += n
	s.most = max(s.most, s.now)
}

func (s *slow) mostAtOnce() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// identities has one client, whatever its name.
type identities struct{ transport http.RoundTripper }

func (i identities) Config(string, ...string) *rest.Config {
	return &rest.Config{Transport: i.transport}
}
func (i identities) ServiceAccountConfig(string, string) *rest.Config { return i.Config("") }

// send sends requests at once and returns how long they took.
func send(t *testing.T, c *rest.Config, method string, n int) time.Duration {
	t.Helper()
	client, err := rest.TransportFor(c)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	done := make(chan error)
	for range n {
		go func() {
			r, err := http.NewRequestWithContext(t.Context(), method, "https://kubernetes/", strings.NewReader(""))
			if err == nil {
				_, err = client.RoundTrip(r)
			}
			done <- err
		}()
	}
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return time.Since(began)
}

// TestPaced: a client has few writes at once, unless they are slow, and as many reads as it likes.
func TestPaced(t *testing.T) {
	all := pace(&rest.Config{})
	writes := cap(all.WrapTransport(nil).(pacer).slots)
	for name, c := range map[string]struct {
		method string
		takes  time.Duration
		most   int
		within time.Duration
	}{
		"writes":      {http.MethodPost, 10 * time.Millisecond, writes, 100 * time.Millisecond},
		"slow writes": {http.MethodPatch, time.Second, 10 * writes, 9*paceFor + time.Second},
		"reads":       {http.MethodGet, 10 * time.Millisecond, 10 * writes, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slow{takes: c.takes}
				if took := send(t, Paced(identities{s}).ServiceAccountConfig("kube-system", "a"), c.method, 10*writes); took != c.within {
					t.Errorf("%d requests took %s, want %s", 10*writes, took, c.within)
				}
				if most := s.mostAtOnce(); most != c.most {
					t.Errorf("%d at once, want %d", most, c.most)
				}
			})
		})
	}
}

// TestPacedAlone: what one client writes does not delay another one, and clients of one configuration are one.
func TestPacedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: 10 * time.Millisecond}
		all := Paced(identities{s})
		a := all.Config("a")
		n := cap(a.WrapTransport(nil).(pacer).slots)
		other := make(chan time.Duration)
		go func() { other <- send(t, rest.CopyConfig(a), http.MethodPost, n) }()
		synctest.Wait()
		if took := send(t, all.Config("b"), http.MethodPost, n); took != s.takes {
			t.Errorf("another client's took %s, want %s", took, s.takes)
		}
		<-other
		go func() { other <- send(t, rest.CopyConfig(a), http.MethodPost, n) }()
		synctest.Wait()
		if took := send(t, a, http.MethodPost, n); took != 2*s.takes {
			t.Errorf("the same client's took %s, want %s", took, 2*s.takes)
		}
		<-other
	})
}

// TestPacedCancelled: a request that waits for others ends with its context.
func TestPacedCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: time.Hour}
		client, err := rest.TransportFor(Paced(identities{s}).Config("a"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), paceFor/2)
		defer cancel()
		post := func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://kubernetes/", http.NoBody)
			if err == nil {
				_, err = client.RoundTrip(r)
			}
			return err
		}
		writes := cap(pace(&rest.Config{}).WrapTransport(nil).(pacer).slots)
		for range writes {
			go post(t.Context())
		}
		synctest.Wait()
		if err := post(ctx); !errors.Is(err, context.DeadlineExceeded) || s.mostAtOnce() != writes {
			t.Errorf("error %v, %d at once, want that of the context, %d", err, s.mostAtOnce(), writes)
		}
		time.Sleep(2 * time.Hour)
	})
}
