package tunnel

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/tunnel"
)

const patience = 20 * time.Second

// running is a server whose component runs, with an agent a at 127.0.0.1.
type running struct {
	*Server
	http    *httptest.Server
	kubelet string       // the address of what serves as the kubelet of a
	reached atomic.Bool  // by a handshake
	end     func()       // of the component
	caller  atomic.Value // user.Info
}

func start(t *testing.T) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	t.Cleanup(func() { l.Close() })
	log := logrus.New()
	log.SetOutput(io.Discard)
	r := &running{kubelet: l.Addr().String()}
	r.caller.Store(&user.DefaultInfo{Name: "system:node:a", Groups: []string{user.NodesGroup}})
	r.Server = &Server{opts: Options{NodeName: "one", Log: log}, every: 10 * time.Millisecond, sessions: map[string]*tunnel.Session{}}
	r.shake = func(context.Context, string, netip.AddrPort) error {
		if r.reached.Load() {
			return nil
		}
		return errors.New("no\nanswer")
	}
	node := newNode("a", names.RoleAgent, "", "192.0.2.2")
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	v := viewOf(t, node)
	life, end := context.WithCancel(context.Background())
	r.life, r.cluster = life, v
	r.end = func() {
		end()
		r.mu.Lock()
		r.life = nil
		r.mu.Unlock()
		r.handlers.Wait()
	}
	handler := r.Handler(http.NotFoundHandler())
	r.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		handler.ServeHTTP(w, req.WithContext(apirequest.WithUser(req.Context(), r.caller.Load().(user.Info))))
	}))
	t.Cleanup(func() { r.end(); r.http.Close() })
	return r
}

// ask sends the request of an agent, and serves the tunnel that it gets: every connection goes to the kubelet.
func (r *running) ask(t *testing.T, headers ...string) (*http.Response, net.Conn) {
	t.Helper()
	c, err := net.Dial("tcp", r.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	req, _ := http.NewRequest(http.MethodGet, r.http.URL+tunnel.Path, nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", tunnel.Protocol)
	req.Header.Set(tunnel.ModeHeader, tunnel.Auto)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if err := req.Write(c); err != nil {
		t.Fatal(err)
	}
	from := bufio.NewReader(c)
	answer, err := http.ReadResponse(from, req)
	if err != nil {
		t.Fatal(err)
	}
	return answer, rest{c, from}
}

// rest is a connection of which some bytes have been read.
type rest struct {
	net.Conn
	from *bufio.Reader
}

func (r rest) Read(p []byte) (int, error) { return r.from.Read(p) }

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("%s: did not happen within %s", what, patience)
		}
	}
}

// TestAnswers: which clients get a tunnel, and when.
func TestAnswers(t *testing.T) {
	r := start(t)
	as := func(name string, groups ...string) user.Info { return &user.DefaultInfo{Name: name, Groups: groups} }
	for _, c := range []struct {
		name    string
		caller  user.Info
		reached bool
		headers []string
		code    int
	}{
		{"a node that is reached", as("system:node:a", user.NodesGroup), true, nil, 204},
		{"a node that is not reached", as("system:node:a", user.NodesGroup), false, []string{"Upgrade", "websocket"}, 426},
		{"a node that is not registered", as("system:node:b", user.NodesGroup), false, nil, 503},
		{"an administrator", as("kubelith-admin", "kubelith:admins"), false, nil, 403},
		{"a user named as a node", as("system:node:a"), false, nil, 403},
		{"a node that wants nothing", as("system:node:a", user.NodesGroup), false, []string{tunnel.ModeHeader, tunnel.Never}, 400},
	} {
		r.caller.Store(c.caller)
		r.reached.Store(c.reached)
		answer, conn := r.ask(t, c.headers...)
		if answer.StatusCode != c.code {
			t.Errorf("%s: %s", c.name, answer.Status)
		}
		conn.Close()
	}
	if r.has("a") {
		t.Error("a session is left")
	}
	r.end()
	r.caller.Store(as("system:node:a", user.NodesGroup))
	if answer, _ := r.ask(t); answer.StatusCode != 503 {
		t.Errorf("while the component does not run: %s", answer.Status)
	}
}

// serve serves a tunnel as an agent does; its connections go to the kubelet wherever they should go.
func (r *running) serve(t *testing.T, headers ...string) (answer *http.Response, ended chan error) {
	answer, c := r.ask(t, headers...)
	ended = make(chan error, 1)
	if answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("no tunnel: %s", answer.Status)
	}
	go func() {
		ended <- tunnel.Serve(t.Context(), c, func(context.Context, netip.AddrPort) error { return nil })
	}()
	eventually(t, "a session", func() bool { return r.has("a") })
	return answer, ended
}

// through dials through the tunnel, and sends some bytes.
func (r *running) through(t *testing.T) net.Conn {
	t.Helper()
	c, err := r.session("a").Dial(t.Context(), r.kubelet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, "x")
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTunnel: the tunnel carries connections, is replaced by a newer one, and ends when the server reaches the node,
// but not while it is in use.
func TestTunnel(t *testing.T) {
	r := start(t)
	answer, first := r.serve(t)
	if reason, name := answer.Header.Get(tunnel.ReasonHeader), answer.Header.Get(tunnel.ServerHeader); reason != "no answer" || name != "one" {
		t.Errorf("server %q gives the reason %q", name, reason)
	}
	before := r.session("a")
	r.through(t).Close()
	if answer, c := r.ask(t, tunnel.HaveHeader, "two,one"); answer.StatusCode != http.StatusConflict {
		t.Errorf("a second tunnel of one server: %s", answer.Status)
	} else {
		c.Close()
	}
	_, second := r.serve(t, tunnel.HaveHeader, "two")
	eventually(t, "the first tunnel to end", func() bool { return len(first) == 1 })
	eventually(t, "the second session", func() bool { return r.has("a") && r.session("a") != before })
	used := r.through(t)
	r.reached.Store(true)
	eventually(t, "no session for new connections", func() bool { return !r.has("a") })
	time.Sleep(50 * time.Millisecond)
	io.WriteString(used, "x")
	if _, err := used.Read(make([]byte, 1)); err != nil || len(second) > 0 {
		t.Fatalf("the connection in a tunnel that is not needed any more: %v", err)
	}
	used.Close()
	eventually(t, "the second tunnel to end", func() bool { return len(second) == 1 })
}

// TestAlways: a tunnel that the agent wants in any case stays.
func TestAlways(t *testing.T) {
	r := start(t)
	r.reached.Store(true)
	_, ended := r.serve(t, tunnel.ModeHeader, tunnel.Always)
	time.Sleep(50 * time.Millisecond)
	if len(ended) > 0 || !r.has("a") {
		t.Fatal("the tunnel has ended")
	}
	r.end()
	eventually(t, "the tunnel to end with the component", func() bool { return len(ended) == 1 })
}

// TestEither: without a tunnel a connection is direct; it does not wait for a direct one that hangs once there is a
// tunnel, and ends with its context.
func TestEither(t *testing.T) {
	r := start(t)
	var fails atomic.Bool
	hanging := make(chan struct{}, 10)
	dial := r.dialer(func(ctx context.Context, _, address string) (net.Conn, error) {
		if fails.Load() {
			return nil, errors.New("refused " + address)
		}
		hanging <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}, func(_ *view, address string) target {
		if strings.HasPrefix(address, "other") {
			return target{address: address}
		}
		return target{"a", address}
	})
	fails.Store(true)
	for _, address := range []string{"other:1", r.kubelet} {
		if _, err := dial(t.Context(), "tcp", address); err == nil || err.Error() != "refused "+address {
			t.Errorf("direct to %s: %v", address, err)
		}
	}
	fails.Store(false)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-hanging; cancel() }()
	if _, err := dial(ctx, "tcp", r.kubelet); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	type result struct {
		c   net.Conn
		err error
	}
	got := make(chan result, 1)
	go func() {
		c, err := dial(t.Context(), "tcp", r.kubelet)
		got <- result{c, err}
	}()
	<-hanging
	r.serve(t)
	select {
	case r := <-got:
		if r.err != nil {
			t.Error(r.err)
		} else {
			r.c.Close()
		}
	case <-time.After(patience):
		t.Error("it waits for the direct connection")
	}
}
