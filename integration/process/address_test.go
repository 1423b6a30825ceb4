package process

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestAddressChanges: the host gets another address, as by DHCP. The server logs that in one line and exits; restarted,
// it uses the new address everywhere, with the same pods. A renamed host, or other networks, are refused.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoTestImage: true})
	s.Kubectl(t, "run", "web", "--image=kubelith/hello:1")
	s.Kubectl(t, "wait", "--for=condition=Ready", "pod/web", harness.Timeout(60*time.Second))
	pids := tasks(t, s.Exec(t, s.BinaryPath(), "ctr", "tasks", "list"))

	old := s.NodeIP
	dot := strings.LastIndexByte(old, '.')
	moved := old[:dot] + ".77"
	s.Exec(t, "ip", "addr", "del", old+"/24", "dev", "eth0")
	s.Exec(t, "ip", "addr", "add", moved+"/24", "dev", "eth0")
	s.Exec(t, "ip", "route", "replace", "default", "via", s.HostIP)
	code := s.WaitExit(t, 60*time.Second)
	if want := fmt.Sprintf("the address of this node changed from %s to %s: exiting", old, moved); code == 0 || !strings.Contains(s.Logs(), want) {
		t.Fatalf("exit code %d, the log lacks %q", code, want)
	}
	for _, pid := range pids {
		if !harness.Alive(pid) {
			t.Errorf("process %d has ended", pid)
		}
	}

	for change, want := range map[string]string{
		"--node-name=renamed":            "set nodeName (--node-name) to ",
		"--cluster-cidr=10.99.0.0/16":    "set clusterCIDR (--cluster-cidr) to 10.42.0.0/16",
		"--cluster-domain=other.example": "set clusterDomain (--cluster-domain) to cluster.local",
	} {
		res := s.RunBinary(t, append(s.ServerArgs(), change)...)
		if res.Code == 0 || !strings.Contains(res.Stderr, want) || strings.Count(res.Stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, %s", change, res.Code, res.Stderr)
		}
	}

	// A cluster of a release that knew no marks goes on, and is marked.
	s.Exec(t, "rm", "/var/lib/kubelet/.kubelith", harness.DataDir+"/id", harness.DataDir+"/cluster.json")
	s.Exec(t, "sh", "-c", "echo "+harness.DataDir+" >"+harness.RunDir+"/data-dir")

	s.Launch(t)
	harness.Eventually(t, 60*time.Second, "the new address", func() error {
		if err := alive(s); err != nil {
			return err
		}
		for _, args := range [][]string{
			{"get", "nodes", "-o=jsonpath={.items[*].status.addresses[?(@.type==\"InternalIP\")].address}"},
			{"get", "endpointslices", "kubernetes", "-o=jsonpath={.endpoints[*].addresses[*]}"},
		} {
			if res := s.TryKubectl(t, args...); strings.TrimSpace(res.Stdout) != moved {
				return fmt.Errorf("kubectl %s: %q %s", strings.Join(args, " "), res.Stdout, res.Stderr)
			}
		}
		return nil
	})
	id := s.Exec(t, "cat", harness.DataDir+"/id")
	if mark := s.Exec(t, "cat", "/var/lib/kubelet/.kubelith"); mark != harness.DataDir+"\n"+id {
		t.Errorf("the kubelet's directory is marked as %q", mark)
	}
	for _, port := range []string{"6443", "10250"} {
		conn, err := s.DialContext(t.Context(), "tcp", net.JoinHostPort(moved, port))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the names are checked below
		if err := client.HandshakeContext(t.Context()); err != nil {
			t.Fatalf("port %s: %v", port, err)
		}
		if err := client.ConnectionState().PeerCertificates[0].VerifyHostname(moved); err != nil {
			t.Errorf("port %s: %v", port, err)
		}
	}
	harness.Eventually(t, 30*time.Second, "logs, through the kubelet by its address and certificate", func() error {
		if res := s.TryKubectl(t, "logs", "web"); res.Code != 0 {
			return fmt.Errorf("%s", res.Stderr)
		}
		return nil
	})
	for _, pid := range pids {
		if !harness.Alive(pid) {
			t.Errorf("process %d has ended", pid)
		}
	}
}
