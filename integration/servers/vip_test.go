package servers

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

const emptyConfig = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"

// client returns a client that opens a new connection to the address for each request, and verifies the server.
func client(t *testing.T, of *harness.Server, address string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(of.RESTConfig(t))
	config.Host = "https://" + net.JoinHostPort(address, "6443")
	config.TLSClientConfig.ServerName = ""
	trust, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	cs, err := kubernetes.NewForConfigAndClient(config, &http.Client{
		Timeout:   harness.Patience(3 * time.Second),
		Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// carries reports whether the address is on the server's interface.
func carries(t *testing.T, s *harness.Server, vip string) bool {
	t.Helper()
	return strings.Contains(s.Exec(t, "ip", "-o", "addr", "show", "dev", "eth0"), " "+vip+"/")
}

// traffic writes through an address, and knows how long no write was acknowledged.
type traffic struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
	stop    func()
}

func startTraffic(t *testing.T, cs kubernetes.Interface) *traffic {
	ctx, cancel := context.WithCancel(t.Context())
	w, done := &traffic{last: time.Now()}, make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_, err := cs.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("through-vip-%d", i)}}, metav1.CreateOptions{})
			w.mu.Lock()
			if err == nil {
				w.longest = max(w.longest, time.Since(w.last))
				w.last = time.Now()
			}
			w.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
		}
	}()
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	return w
}

// pause returns how long no write was acknowledged since the last call.
func (w *traffic) pause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := w.longest
	w.longest = 0
	return longest
}

// since reports whether a write was acknowledged after that time.
func (w *traffic) since(at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last.After(at.Add(time.Second)) // it may have begun before
}

// testVirtualAddress: three servers have an address that the first was given, which was started with emptyConfig.
// Clients reach the API there while its holder is stopped, paused and killed. make vip-faults repeats that, and also
// cuts the holder off.
func testVirtualAddress(t *testing.T, c *cluster) {
	first := c.servers[0]
	c.leader(t)
	vip := strings.TrimSuffix(first.HostIP, ".1") + ".200"
	pids := map[*harness.Server]int{}
	for _, s := range c.servers[1:] {
		pids[s] = s.PID()
	}
	if err := os.WriteFile(first.Path("/etc/kubelith/config.yaml"), []byte(emptyConfig+"vip: "+vip+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first.Restart(t)
	cs := client(t, first, vip)
	harness.Eventually(t, time.Minute, "an answer at the virtual address", func() error {
		_, err := cs.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	})
	for _, s := range c.servers {
		harness.Eventually(t, 2*time.Minute, "the certificate of "+s.NodeName()+" to have the virtual address", func() error {
			conn, err := tls.Dial("tcp", net.JoinHostPort(s.NodeIP, "6443"), &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				return err
			}
			defer conn.Close()
			return conn.ConnectionState().PeerCertificates[0].VerifyHostname(vip)
		})
		if pid, ok := pids[s]; ok && pid != s.PID() {
			t.Errorf("%s was started again", s.NodeName())
		}
	}
	harness.Eventually(t, time.Minute, "a Service with the virtual address to be refused", func() error {
		_, err := cs.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "thief"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 6443}}, ExternalIPs: []string{vip}},
		}, metav1.CreateOptions{})
		switch {
		case err == nil:
			return harness.Permanent(errors.New("it was created"))
		case !strings.Contains(err.Error(), vip+" is the virtual address of the API"):
			return err
		}
		return nil
	})

	agent := harness.Start(t, harness.Options{Network: c.network, NoTestImage: true, Agent: &harness.AgentOptions{
		Of: first, URL: "https://" + net.JoinHostPort(vip, "6443"), Token: first.Token(t),
	}})
	agent.Stop(t)

	// holder waits until exactly one server carries the address, and returns it.
	holder := func(not *harness.Server) *harness.Server {
		t.Helper()
		var found *harness.Server
		harness.Eventually(t, time.Minute, "one server to carry the address", func() error {
			found = nil
			for _, s := range c.servers {
				switch has := carries(t, s, vip); {
				case has && found != nil:
					return fmt.Errorf("%s and %s carry it", s.NodeName(), found.NodeName())
				case has:
					found = s
				}
			}
			if found == nil || found == not {
				return errors.New("no other server carries it")
			}
			return nil
		})
		return found
	}
	w := startTraffic(t, cs)
	signal := func(s *harness.Server, sig unix.Signal) {
		if err := unix.Kill(s.PID(), sig); err != nil {
			t.Fatal(err)
		}
	}
	stopped := fault{"stopped", func(s *harness.Server) {
		s.Stop(t)
		if carries(t, s, vip) {
			t.Errorf("%s has stopped, and the address is still there", s.NodeName())
		}
	}, func(s *harness.Server) { s.Launch(t) }}
	paused := fault{"paused", func(s *harness.Server) {
		pid := s.PID()
		t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) }) // or it would not stop
		signal(s, unix.SIGSTOP)
	}, func(s *harness.Server) { signal(s, unix.SIGCONT) }}
	cut := fault{"cut off", func(s *harness.Server) { s.Isolate(t) }, func(s *harness.Server) { s.Rejoin(t) }}
	killed := fault{"killed", func(s *harness.Server) { s.Kill9(t) }, func(s *harness.Server) { s.Launch(t) }}
	faults := []fault{stopped, paused, killed}
	if rounds, _ := strconv.Atoi(os.Getenv("VIP_ROUNDS")); rounds > 0 {
		faults = slices.Repeat([]fault{stopped, paused, cut, killed}, rounds)
	}
	for i, f := range faults {
		h := holder(nil)
		w.pause()
		f.begin(h)
		at := time.Now()
		to := holder(h)
		harness.Eventually(t, time.Minute, "a write through the virtual address", func() error {
			if !w.since(at) {
				return errors.New("none yet")
			}
			return nil
		})
		t.Logf("%s %s: %s carries the address, longest pause %s", h.NodeName(), f.name, to.NodeName(), w.pause().Round(100*time.Millisecond))
		if i < len(faults)-1 {
			f.end(h)
			c.leader(t)
		}
	}
}

// fault is what happens to the server that carries the address.
type fault struct {
	name       string
	begin, end func(*harness.Server)
}

// TestVirtualAddressIPv6: neighbours learn the new place of an IPv6 address from its announcement, and an address that
// another machine has is refused.
func TestVirtualAddressIPv6(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{IPv6: true, NoTestImage: true, Args: []string{noNode}, ConfigYAML: emptyConfig})
	for _, taken := range []string{s.HostIP, netip.MustParseAddr(s.HostIP6).String()} {
		r := s.RunBinary(t, "server", "--vip="+taken)
		if r.Code == 0 || !strings.Contains(r.Stderr, "another machine of the network (") || !strings.Contains(r.Stderr, "has the virtual address "+taken+": give --vip an address that nothing else uses") {
			t.Errorf("%s: status %d\n%s%s", taken, r.Code, r.Stdout, r.Stderr)
		}
		if r := s.RunBinary(t, "check", "--vip="+taken); r.Code == 0 || !strings.Contains(r.Stdout, "has the virtual address "+taken) {
			t.Errorf("check of %s: status %d\n%s%s", taken, r.Code, r.Stdout, r.Stderr)
		}
		if _, err := os.Stat(s.Path(harness.DataDir + "/server")); err == nil {
			t.Error("a refused start has left something")
		}
	}
	if r := s.RunBinary(t, "server", "--vip=198.51.100.1"); r.Code == 0 || !strings.Contains(r.Stderr, "no interface of this machine is in the network of the virtual address 198.51.100.1") {
		t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	vip := netip.MustParseAddr(strings.TrimSuffix(s.HostIP6, "1") + "200").String() // as ip shows it
	neighbour := func() string {
		out, err := exec.Command("ip", "-j", "neigh", "show", vip, "dev", s.Veth()).Output()
		if err != nil {
			t.Fatal(err)
		}
		var all []struct{ Lladdr string }
		if err := json.Unmarshal(out, &all); err != nil || len(all) == 0 {
			return ""
		}
		return all[0].Lladdr
	}
	// This machine believes that another one has the address, and sends nothing that would show it the contrary.
	const former = "02:00:00:00:00:99"
	if out, err := exec.Command("ip", "neigh", "replace", vip, "lladdr", former, "dev", s.Veth(), "nud", "stale").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(s.Path("/etc/kubelith/config.yaml"), []byte(emptyConfig+"vip: "+vip+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Launch(t)
	mac, err := os.ReadFile(s.Path("/sys/class/net/eth0/address"))
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 2*time.Minute, "the announcement", func() error {
		if now := neighbour(); now != strings.TrimSpace(string(mac)) {
			return fmt.Errorf("the address is at %s", now)
		}
		return nil
	})
	cs := client(t, s, vip)
	harness.Eventually(t, time.Minute, "an answer at the virtual address", func() error {
		_, err := cs.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	})
	s.Stop(t)
	if carries(t, s, vip) {
		t.Error("the address stays after a stop")
	}
}
