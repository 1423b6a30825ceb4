package process

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestSystemd is the service manager: it gets READY=1 when everything is ready and not before, pings after that, and
// STOPPING=1 when the stop begins.
func TestSystemd(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{Env: []string{"NOTIFY_SOCKET=/run/notify.sock", "WATCHDOG_USEC=1000000"}})
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.Path("/run/notify.sock"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	manager := &manager{ready: make(chan struct{})}
	go manager.read(conn)

	s.Launch(t)
	select {
	case <-manager.ready:
	case <-s.Exited():
		t.Fatal("the server has ended")
	case <-time.After(60 * time.Second):
		t.Fatalf("no READY=1 within 60 s, only %q", manager.all())
	}
	// Everything answers at this moment, without waiting. Of the API's own checks two are left out: upstream's hooks for the
	// RBAC policy and the priority classes still compare what our own has made.
	if _, err := s.Client(t).Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err != nil {
		t.Errorf("the API: %v", err)
	}
	if _, err := s.Client(t).RbacV1().ClusterRoles().Get(t.Context(), "cluster-admin", metav1.GetOptions{}); err != nil {
		t.Errorf("the RBAC policy: %v", err)
	}
	for what, url := range map[string]string{"kubelet": "http://127.0.0.1:10248/healthz", "proxy": "http://127.0.0.1:10256/livez"} {
		resp, err := s.HTTPClient(time.Second).Get(url)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", what, resp.Status)
		}
	}
	// CoreDNS answers; at a first start kube-proxy may still be about to write the rules for its new Service.
	harness.Eventually(t, 5*time.Second, "DNS at the cluster IP", func() error { return askDNS(t.Context(), s.HolderPID(), time.Second) })
	s.Exec(t, s.BinaryPath(), "ctr", "version")
	if pods := s.Kubectl(t, "get", "pods", "--all-namespaces", "-o=name"); pods != "" {
		t.Errorf("a Ready cluster has pods of its own: %s", pods)
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
		t.Errorf("READY=1 was said %d times", n)
	}
	if manager.count("STOPPING=1") != 1 {
		t.Errorf("the stop was not announced: %q", manager.all())
	}
}

// manager keeps what was said.
type manager struct {
	mu    sync.Mutex
	lines []string
	ready chan struct{}
	once  sync.Once
}

func (m *manager) read(conn net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		m.mu.Lock()
		m.lines = append(m.lines, strings.Split(string(buf[:n]), "\n")...)
		m.mu.Unlock()
		if m.count("READY=1") > 0 {
			m.once.Do(func() { close(m.ready) })
		}
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
