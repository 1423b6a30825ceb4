package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/host/sandbox"
)

func TestMain(m *testing.M) { Main(m) }

// TestSandbox inspects a sandbox from both sides and checks that nothing of it remains.
func TestSandbox(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	sb, err := sandbox.New(sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			sb.Close()
		}
	}()
	s := &Server{Sandbox: sb}

	if out := s.Exec(t, "ip", "-o", "addr", "show", "eth0"); !strings.Contains(out, sb.NodeIP+"/24") {
		t.Errorf("eth0 inside has: %s", out)
	}
	if out := s.Exec(t, "ls", "/sys/class/net"); strings.Join(strings.Fields(out), " ") != "eth0 lo" {
		t.Errorf("/sys/class/net inside is %q", out)
	}
	for _, dir := range []string{"/etc", "/var/lib", "/var/log", "/run", "/opt"} {
		s.Exec(t, "touch", dir+"/kubelith-sandbox-test")
		if _, err := os.Stat(dir + "/kubelith-sandbox-test"); err == nil {
			t.Errorf("a file made inside in %s is on the host", dir)
		}
		if _, err := os.Stat(s.Path(dir + "/kubelith-sandbox-test")); err != nil {
			t.Errorf("Path does not lead into the sandbox: %v", err)
		}
	}
	s.Exec(t, "mkdir", "/var/lib/mounted")
	s.Exec(t, "mount", "-t", "tmpfs", "tmpfs", "/var/lib/mounted")
	if out := s.Exec(t, "cat", "/proc/self/mountinfo"); strings.Count(out, "mounted") != 1 {
		t.Errorf("a mount inside is seen other than once:\n%s", out)
	}
	l, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := s.DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Errorf("dial inside: %v", err)
	} else {
		c.Close()
	}
	if c, err := net.DialTimeout("tcp", l.Addr().String(), time.Second); err == nil {
		c.Close()
		t.Error("the sandbox's loopback is reachable from the host")
	}

	// A process without a supervisor, like a shim.
	stray := s.Command("sleep", "60")
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 10*time.Second, "the stray process to be in the sandbox", func() error {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", stray.Process.Pid)); string(comm) != "sleep\n" {
			return fmt.Errorf("it is %q", comm)
		}
		return nil
	})
	dirs := sb.CgroupDirs()
	if len(dirs) == 0 {
		t.Fatal("no cgroup was made")
	}
	closed = true
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	stray.Wait()
	if pids := sb.Processes(); len(pids) > 0 {
		t.Errorf("processes remain: %v", pids)
	}
	for _, path := range append(dirs, sb.Base, "/sys/class/net/"+sb.Veth()) {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s remains", path)
		}
	}
	if state, err := os.ReadFile(filepath.Join(sandbox.StateDir, filepath.Base(sb.Base))); err != nil || len(state) > 0 {
		t.Errorf("the state file has %q, %v", state, err)
	}
}

// TestNetwork joins two sandboxes, separates them in two ways, and checks that nothing of the network remains.
func TestNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	network := &sandbox.Network{}
	var members []*Server
	for range 2 {
		sb, err := sandbox.New(sandbox.Options{Network: network, IPv6: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat("/sys/class/net/" + sb.Bridge()); err == nil {
				t.Errorf("%s remains", sb.Bridge())
			}
		}()
		members = append(members, &Server{Sandbox: sb})
	}
	a, b := members[0], members[1]
	l, err := b.Listen("[::]:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reaches := func(ip string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		c, err := a.DialContext(ctx, "tcp", net.JoinHostPort(ip, "8080"))
		if err == nil {
			c.Close()
		}
		return err
	}
	reachable := func(when string, want bool) {
		t.Helper()
		for _, ip := range []string{b.NodeIP, b.NodeIP6} {
			Eventually(t, 10*time.Second, when, func() error {
				if err := reaches(ip); (err == nil) != want {
					return fmt.Errorf("dial %s: %v", ip, err)
				}
				return nil
			})
		}
	}
	reachable("on one network", true)
	heal := Partition(t, a, b)
	reachable("behind a partition", false)
	if c, err := net.DialTimeout("tcp", net.JoinHostPort(b.NodeIP, "8080"), time.Second); err != nil {
		t.Errorf("the host is behind the partition, too: %v", err)
	} else {
		c.Close()
	}
	heal()
	reachable("after the partition", true)
	b.Isolate(t)
	reachable("without a cable", false)
	b.Rejoin(t)
	reachable("with the cable again", true)

	other := strings.TrimSuffix(b.HostIP, ".1") + ".200"
	old := b.NodeIP
	b.AddAddress(t, other)
	b.RemoveAddress(t, old)
	b.NodeIP = other
	reachable("at another address", true)
	if err := reaches(old); err == nil {
		t.Errorf("%s still answers", old)
	}
	if n := b.LinkCounter(t, "eth0", "rx_packets"); n <= 0 {
		t.Errorf("eth0 received %d packets", n)
	}
	if n := b.LinkCounter(t, "none0", "rx_packets"); n != -1 {
		t.Errorf("an interface that is not there received %d packets", n)
	}
}

func TestDefects(t *testing.T) {
	for _, tc := range []struct {
		name, log string
		want      int
	}{
		{"clean", "level=info msg=\"panic: quoted in a message\"\n", 0},
		{"panic", "x\npanic: runtime error: index out of range\n\ngoroutine 1", 1},
		{"recovered", "2026-01-01T00:00:00Z error component=kubelet Observed a panic panic=x\n", 1},
		{"mutation", "E1 mutation_detector.go:1] cache *v1.Pod modified\n", 1},
	} {
		if got := defects(tc.log); len(got) != tc.want {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
}

func TestPollStopsAtPermanent(t *testing.T) {
	calls := 0
	err := poll(time.Minute, "it", func() error { calls++; return Permanent(os.ErrClosed) })
	if err == nil || calls != 1 {
		t.Errorf("polled %d times: %v", calls, err)
	}
}

func TestPatience(t *testing.T) {
	for times, want := range map[string]time.Duration{"": time.Minute, "6": 6 * time.Minute, "0": time.Minute, "much": time.Minute} {
		t.Setenv("KUBELITH_TEST_PATIENCE", times)
		if got := Patience(time.Minute); got != want {
			t.Errorf("KUBELITH_TEST_PATIENCE=%q makes a minute %v, want %v", times, got, want)
		}
	}
}
