package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// whoami answers with the authenticator's result.
func whoami(p **InProcess) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		resp, ok, err := (*p).AuthenticateRequest(r)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case !ok:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			io.WriteString(w, resp.User.GetName()+" "+strings.Join(resp.User.GetGroups(), ","))
		}
	}
}

func get(t *testing.T, c *http.Client, req *http.Request) (int, string) {
	t.Helper()
	r, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestIdentityOfEachConfig(t *testing.T) {
	var p *InProcess
	p, _ = open(t, whoami(&p))
	for _, c := range []struct {
		name   string
		config *rest.Config
		want   string
	}{
		{"component", p.Config(Scheduler), "system:kube-scheduler system:authenticated"},
		{"groups", p.Config("x", "a", "b"), "x a,b,system:authenticated"},
		{"node", p.NodeConfig("n1"), "system:node:n1 system:nodes,system:authenticated"},
		{"service account", p.ServiceAccountConfig("kube-system", "job-controller"),
			"system:serviceaccount:kube-system:job-controller system:serviceaccounts,system:serviceaccounts:kube-system,system:authenticated"},
		{"copy", rest.CopyConfig(p.Config(Proxy)), "system:kube-proxy system:authenticated"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, err := rest.HTTPClientFor(c.config)
			if err != nil {
				t.Fatal(err)
			}
			req, _ := http.NewRequest("GET", c.config.Host, nil)
			if code, got := get(t, client, req); code != 200 || got != c.want {
				t.Errorf("got %d %q, want %q", code, got, c.want)
			}
			if strings.Contains(c.want, "system:masters") {
				t.Error("no identity of the process is a member of system:masters")
			}
		})
	}
}

// The caller's slice of groups is not the identity's.
func TestGroupsAreCopied(t *testing.T) {
	var p *InProcess
	p, _ = open(t, whoami(&p))
	groups := make([]string, 1, 4)
	groups[0] = "a"
	cfg := p.Config("x", groups...)
	groups[0] = "system:masters"
	_ = append(groups, "system:masters")
	req, _ := http.NewRequest("GET", "https://x", nil)
	if _, got := get(t, &http.Client{Transport: cfg.Transport}, req); got != "x a,system:authenticated" {
		t.Errorf("got %q", got)
	}
}

func TestIdentityCannotBeForged(t *testing.T) {
	type otherKey struct{} // like identityKey, from another package
	var p *InProcess
	p, c := open(t, whoami(&p))
	forge := func(req *http.Request) *http.Request {
		for k, v := range map[string]string{
			"Authorization": "Bearer " + APIServer, "X-Remote-User": APIServer, "X-Remote-Group": "system:masters",
			"Identity": APIServer, "Identitykey": APIServer, "User": APIServer,
		} {
			req.Header.Set(k, v)
		}
		ctx := context.WithValue(req.Context(), otherKey{}, (&transport{}).user)
		//lint:ignore SA1029 what an attacker would try
		ctx = context.WithValue(ctx, "identityKey", APIServer)
		return req.WithContext(ctx)
	}
	t.Run("from the network", func(t *testing.T) {
		s := httptest.NewServer(whoami(&p))
		defer s.Close()
		req, _ := http.NewRequest("GET", s.URL, nil)
		if code, got := get(t, s.Client(), forge(req)); code != http.StatusUnauthorized {
			t.Errorf("got %d %q, want 401", code, got)
		}
		s.Client().CloseIdleConnections()
	})
	t.Run("over the network by a handler's own context", func(t *testing.T) {
		s := httptest.NewServer(whoami(&p))
		defer s.Close()
		req, _ := http.NewRequest("GET", s.URL, nil)
		req = req.WithContext(withIdentity(req.Context(), p.Config(APIServer).Transport.(*transport).user))
		if code, got := get(t, s.Client(), req); code != http.StatusUnauthorized {
			t.Errorf("got %d %q, want 401", code, got)
		}
		s.Client().CloseIdleConnections()
	})
	t.Run("in process", func(t *testing.T) {
		req, _ := http.NewRequest("GET", "https://root:toor@x", nil)
		if _, got := get(t, c, forge(req)); got != "tester system:authenticated" {
			t.Errorf("got %q", got)
		}
	})
}

func TestIsLoopback(t *testing.T) {
	var got []bool
	p, _ := open(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = append(got, IsLoopback(r.Context())) }))
	for _, name := range []string{APIServer, Scheduler} {
		req, _ := http.NewRequest("GET", "https://x", nil)
		get(t, &http.Client{Transport: p.Config(name).Transport}, req)
	}
	if !slices.Equal(got, []bool{true, false}) || IsLoopback(t.Context()) {
		t.Errorf("got %v, want the apiserver's own request alone", got)
	}
}

// A handler sends its own request with the context that it got: the inner request has its own identity and none of the
// outer one's values, yet ends with it.
func TestRequestFromAHandler(t *testing.T) {
	type outerKey struct{}
	var p *InProcess
	started, ended := make(chan struct{}), make(chan struct{})
	p, c := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := identityFrom(r.Context())
		switch r.URL.Path {
		case "/outer", "/outer-wait":
			ctx := context.WithValue(r.Context(), outerKey{}, "outer")
			req, _ := http.NewRequestWithContext(ctx, "GET", "https://x/inner"+strings.TrimPrefix(r.URL.Path, "/outer"), nil)
			resp, err := (&http.Client{Transport: p.Config("inner").Transport}).Do(req)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			defer resp.Body.Close()
			io.WriteString(w, u.GetName()+"+")
			io.Copy(w, resp.Body)
		case "/inner":
			if r.Context().Value(outerKey{}) != nil {
				http.Error(w, "the outer request's value leaked", http.StatusInternalServerError)
				return
			}
			io.WriteString(w, u.GetName())
		case "/inner-wait":
			close(started)
			<-r.Context().Done()
			close(ended)
		}
	}))
	req, _ := http.NewRequest("GET", "https://x/outer", nil)
	if code, got := get(t, c, req); code != 200 || got != "tester+inner" {
		t.Errorf("got %d %q", code, got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, _ = http.NewRequestWithContext(ctx, "GET", "https://x/outer-wait", nil)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Do(req)
		failed <- err
	}()
	await(t, started, "the inner request")
	cancel()
	await(t, ended, "end of the inner request")
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("the outer request: %v", err)
	}
}

func TestTwoIdentitiesAtOnce(t *testing.T) {
	var p *InProcess
	p, _ = open(t, whoami(&p))
	var wg sync.WaitGroup
	for _, name := range []string{"alice", "bob"} {
		c := &http.Client{Transport: p.Config(name).Transport}
		for range 20 {
			wg.Go(func() {
				for range 50 {
					req, _ := http.NewRequest("GET", "https://x", nil)
					r, err := c.Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					b, _ := io.ReadAll(r.Body)
					r.Body.Close()
					if want := name + " system:authenticated"; string(b) != want {
						t.Errorf("got %q, want %q", b, want)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}
