package process

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestSystemd is the service manager: it gets READY=1 when the API and the node are ready and not before, pings after
// that, and STOPPING=1 when the stop begins.
func TestSystemd(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{Env: []string{"NOTIFY_SOCKET=/run/notify.sock", "WATCHDOG_USEC=1000000"}})
	manager := listen(t, s)

	s.Launch(t)
	select {
	case <-manager.isReady():
	case <-s.Exited():
		t.Fatal("the server has ended")
	case <-time.After(harness.Patience(60 * time.Second)):
		t.Fatalf("no READY=1, only %q", manager.all())
	}
	// The API and the node answer now, at the first attempt.
	if _, err := s.Client(t).Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err != nil {
		t.Errorf("the API: %v", err)
	}
	if _, err := s.Client(t).RbacV1().ClusterRoles().Get(t.Context(), "cluster-admin", metav1.GetOptions{}); err != nil {
		t.Errorf("the RBAC policy: %v", err)
	}
	healthy := func(url string) error {
		resp, err := s.HTTPClient(20 * time.Second).Get(url)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	}
	if err := healthy("http://127.0.0.1:10248/healthz"); err != nil {
		t.Errorf("the kubelet: %v", err)
	}
	// All other components are reported when they are ready; READY=1 does not wait for them.
	harness.Eventually(t, 30*time.Second, "the status that all is ready", func() error {
		if manager.count("STATUS=all components are ready") != 1 {
			return errors.New(strings.Join(manager.all(), " "))
		}
		return nil
	})
	if err := healthy("http://127.0.0.1:10256/livez"); err != nil {
		t.Errorf("the proxy: %v", err)
	}
	// CoreDNS answers; at a first start kube-proxy may still be about to write the rules for its new Service.
	harness.Eventually(t, 30*time.Second, "DNS at the cluster IP", func() error { return askDNS(t.Context(), s.HolderPID(), time.Second) })
	s.Exec(t, s.BinaryPath(), "ctr", "version")
	if pods := s.Kubectl(t, "get", "pods", "--all-namespaces", "-o=name"); pods != "" {
		t.Errorf("a Ready cluster has its own pods: %s", pods)
	}

	harness.Eventually(t, 5*time.Second, "pings of the watchdog", func() error {
		if manager.count("WATCHDOG=1") < 3 {
			return errors.New(strings.Join(manager.all(), " "))
		}
		return nil
	})
	if manager.count("STOPPING=1") != 0 {
		t.Error("STOPPING=1 before the stop")
	}
	s.Stop(t)
	if n := manager.count("READY=1"); n != 1 {
		t.Errorf("READY=1 was sent %d times", n)
	}
	if manager.count("STOPPING=1") != 1 {
		t.Errorf("the stop was not announced: %q", manager.all())
	}
}

// manager keeps the notifications.
type manager struct {
	mu    sync.Mutex
	lines []string
	ready chan struct{}
}

// listen receives the notifications of a server with NOTIFY_SOCKET=/run/notify.sock.
func listen(t *testing.T, s *harness.Server) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.Path("/run/notify.sock"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	m := &manager{}
	m.forget()
	go m.read(conn)
	return m
}

// forget drops the notifications so far.
func (m *manager) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines, m.ready = nil, make(chan struct{})
}

// isReady is closed when READY=1 has been sent.
func (m *manager) isReady() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ready
}

func (m *manager) read(conn net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		said := strings.Split(string(buf[:n]), "\n")
		m.mu.Lock()
		if slices.Contains(said, "READY=1") && !slices.Contains(m.lines, "READY=1") {
			close(m.ready)
		}
		m.lines = append(m.lines, said...)
		m.mu.Unlock()
	}
}

func (m *manager) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string{}, m.lines...)
}

func (m *manager) count(line string) (n int) {
	for _, l := range m.all() {
		if l == line {
			n++
		}
	}
	return n
}
