package tunnel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"kubelith.io/kubelith/base/tunnel"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const patience = 20 * time.Second

// server is one that answers requests for tunnels.
type server struct {
	name     string
	listener net.Listener
	sessions chan *tunnel.Session
	group    sync.WaitGroup

	mu    sync.Mutex
	code  int
	asked []string // mode and names of each request
}

func newServer(t *testing.T, name string, code int) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{name: name, listener: l, code: code, sessions: make(chan *tunnel.Session, 10)}
	s.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.group.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		for len(s.sessions) > 0 {
			(<-s.sessions).Close()
		}
		s.group.Wait()
	})
	return s
}

func (s *server) address() string { return s.listener.Addr().String() }

func (s *server) serve(c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		c.Close()
		return
	}
	s.mu.Lock()
	code := s.code
	s.asked = append(s.asked, r.URL.Path+" "+r.Header.Get("Upgrade")+" "+r.Header.Get(tunnel.ModeHeader)+" "+r.Header.Get(tunnel.HaveHeader))
	s.mu.Unlock()
	if code != 101 {
		fmt.Fprintf(c, "HTTP/1.1 %d %s\r\n%s: %s\r\nContent-Length: 0\r\n\r\n", code, http.StatusText(code), tunnel.ServerHeader, s.name)
		c.Close()
		return
	}
	fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\n%s: %s\r\n%s: no answer\r\n\r\n", tunnel.ServerHeader, s.name, tunnel.ReasonHeader)
	session, err := tunnel.Open(context.Background(), c)
	if err == nil {
		s.sessions <- session
	}
}

func (s *server) answer(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code = code
}

func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.asked...)
}

func (s *server) next(t *testing.T) *tunnel.Session {
	t.Helper()
	select {
	case session := <-s.sessions:
		return session
	case <-time.After(patience):
		t.Fatalf("server %s gets no tunnel", s.name)
		return nil
	}
}

// start runs the component against servers at these addresses, until end is called. again is when a server that reaches
// the node is asked again; 0: at once.
func start(t *testing.T, again time.Duration, given string, listed ...string) (s *Server, end func()) {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	s = New(Options{
		Mode:    tunnel.Auto,
		Servers: func() ([]string, string) { return listed, given },
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		},
		NodeName: "a", NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Log: log,
	})
	quick := time.Millisecond
	s.times = times{round: quick, again: quick, taken: quick, first: quick, longest: quick, strange: quick, patience: patience}
	if again > 0 {
		s.times.again = again
	}
	s.nets = func(context.Context) ([]netip.Prefix, error) { return nil, nil }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func() {}) }()
	end = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the component does not end")
		}
	})
	t.Cleanup(end)
	return s, end
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("%s: did not happen within %s", what, patience)
		}
	}
}

// TestEachServer: each server gets a tunnel, again after it has ended, and both ends of it with the component.
func TestEachServer(t *testing.T) {
	one, two := newServer(t, "one", 101), newServer(t, "two", 503)
	s, end := start(t, 0, one.address(), one.address(), two.address())
	first := one.next(t)
	eventually(t, "two to be asked again", func() bool { return len(two.requests()) > 2 })
	two.answer(101)
	second := two.next(t)
	eventually(t, "both to be known", func() bool { return len(s.names()) == 2 })
	first.Close()
	first = one.next(t)
	if got := one.requests(); got[0] != tunnel.Path+" "+tunnel.Protocol+" auto " || got[len(got)-1] != tunnel.Path+" "+tunnel.Protocol+" auto two" {
		t.Errorf("requests: %q", got)
	}
	end()
	for _, session := range []*tunnel.Session{first, second} {
		select {
		case <-session.Done():
		case <-time.After(patience):
			t.Error("a tunnel has not ended")
		}
		session.Close()
	}
}

// TestReached: a server that reaches the node, or has no tunnels, is asked again later, and is no failure.
func TestReached(t *testing.T) {
	for _, code := range []int{204, 404, 409} {
		one := newServer(t, "one", code)
		_, end := start(t, 0, one.address())
		eventually(t, "another request", func() bool { return len(one.requests()) > 1 })
		one.answer(101)
		one.next(t).Close()
		end()
	}
}

// TestRefused: a server that refuses the node, or cannot answer yet, is asked again soon.
func TestRefused(t *testing.T) {
	for _, code := range []int{401, 403, 500, 503} {
		one := newServer(t, "one", code)
		_, end := start(t, time.Hour, one.address())
		eventually(t, "another request", func() bool { return len(one.requests()) > 1 })
		one.answer(101)
		one.next(t).Close()
		end()
	}
}

// TestGiven: when the listed address cannot be reached, the given one is used.
func TestGiven(t *testing.T) {
	one, dead := newServer(t, "one", 101), newServer(t, "dead", 101)
	dead.listener.Close()
	start(t, 0, one.address(), dead.address())
	one.next(t).Close()
}

// TestSilent: a server that accepts and does not answer does not keep the component from ending.
func TestSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	_, end := start(t, 0, l.Addr().String())
	c := <-accepted
	defer c.Close()
	end()
}

// TestAllow: the node connects to itself and to its pods, and to nothing else in its network.
func TestAllow(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	cs := fake.NewClientset(node)
	s := New(Options{NodeName: "a", NodeIPs: []net.IP{net.ParseIP("192.0.2.2"), net.ParseIP("2001:db8::2")}})
	s.nets = func(ctx context.Context) ([]netip.Prefix, error) { return podNetworks(ctx, cs, "a") }
	check := func(allowed map[string]bool) {
		t.Helper()
		for address, want := range allowed {
			err := s.allow(t.Context(), netip.MustParseAddrPort(address))
			if (err == nil) != want {
				t.Errorf("%s: %v", address, err)
			}
			if err != nil && !strings.Contains(err.Error(), "is not an address of the node a or of a pod on it") {
				t.Errorf("%s: %v", address, err)
			}
		}
	}
	check(map[string]bool{"192.0.2.2:10250": true, "[2001:db8::2]:10250": true, "10.42.1.7:80": false, "127.0.0.1:22": false})
	node.Spec.PodCIDRs = []string{"10.42.1.0/24", "fd00:42:0:1::/64"}
	if _, err := cs.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	check(map[string]bool{"10.42.1.7:80": true, "[fd00:42:0:1::7]:80": true, "10.42.2.7:80": false, "192.0.2.3:10250": false,
		"127.0.0.1:22": false, "169.254.169.254:80": false, "10.43.0.1:443": false})
	s = New(Options{NodeName: "a"})
	s.nets = func(context.Context) ([]netip.Prefix, error) { return nil, errors.New("no answer") }
	if err := s.allow(t.Context(), netip.MustParseAddrPort("10.42.1.7:80")); err == nil || err.Error() != "read the Node: no answer" {
		t.Errorf("without the API: %v", err)
	}
}
