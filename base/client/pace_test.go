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

// slots is how many writes a client may have under way beyond those that are free.
func slots() int { return cap(pace(&rest.Config{}).WrapTransport(nil).(pacer).slots) }

// TestPaced: a client has few writes at once beyond those that are free, unless they are slow, and as many reads as it
// likes.
func TestPaced(t *testing.T) {
	const rounds = 10
	slots := slots()
	for name, c := range map[string]struct {
		method string
		takes  time.Duration
		most   int
		within time.Duration
	}{
		"writes":      {http.MethodPost, 10 * time.Millisecond, freeBurst + slots, rounds * 10 * time.Millisecond},
		"slow writes": {http.MethodPatch, time.Second, freeBurst + rounds*slots, (rounds-1)*paceFor + time.Second},
		"reads":       {http.MethodGet, 10 * time.Millisecond, freeBurst + rounds*slots, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slow{takes: c.takes}
				config := Paced(identities{s}).ServiceAccountConfig("kube-system", "a")
				if took := send(t, config, c.method, freeBurst+rounds*slots); took != c.within {
					t.Errorf("the requests took %s, want %s", took, c.within)
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
		s := &slow{}
		all := Paced(identities{s})
		a, b, n := all.Config("a"), all.Config("b"), slots()
		send(t, a, http.MethodPost, freeBurst)
		send(t, b, http.MethodPost, freeBurst)
		s.takes = 10 * time.Millisecond
		other := make(chan time.Duration)
		go func() { other <- send(t, rest.CopyConfig(a), http.MethodPost, n) }()
		synctest.Wait()
		if took := send(t, b, http.MethodPost, n); took != s.takes {
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
		s := &slow{}
		config := Paced(identities{s}).Config("a")
		send(t, config, http.MethodPost, freeBurst)
		s.takes = time.Hour
		client, err := rest.TransportFor(config)
		if err != nil {
			t.Fatal(err)
		}
		post := func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://kubernetes/", http.NoBody)
			if err == nil {
				_, err = client.RoundTrip(r)
			}
			return err
		}
		for range slots() {
			go post(t.Context())
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), paceFor/4)
		defer cancel()
		if err := post(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that of the context", err)
		}
		time.Sleep(2 * time.Hour)
	})
}
