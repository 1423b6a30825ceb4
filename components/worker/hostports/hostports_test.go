package hostports

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/names"
)

const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func TestListeners(t *testing.T) {
	const rest = " 00000000:00000000 00:00000000 00000000     0        0 12345\n"
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
		wrong bool
	}{
		"of TCP": {map[string]string{"tcp": "   0: 00000000:0016 00000000:0000 0A" + rest + "   1: 0100007F:0277 00000000:0000 0A" + rest + // loopback
			"   2: 0202000A:1538 00000000:0000 0A" + rest + "   3: 0202000A:0050 0302000A:1234 01" + rest}, "22/TCP,5432/TCP", false},
		"of TCP with IPv6": {map[string]string{"tcp": "", "tcp6": "   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A" + rest +
			"   1: 00000000000000000000000001000000:0277 00000000000000000000000000000000:0000 0A" + rest + // ::1
			"   2: 0000000000000000FFFF00000100007F:0278 00000000000000000000000000000000:0000 0A" + rest}, "22/TCP", false},
		"of UDP": {map[string]string{"udp": "   0: 00000000:006F 00000000:0000 07" + rest + "   1: 00000000:9C40 00000000:0000 07" + rest + // 40000, of the kernel's choice
			"   2: 0202000A:0044 0302000A:0043 01" + rest + "   3: 00000000:0801 00000000:0000 07" + rest}, "111/UDP,2049/UDP", false},
		"none":     {nil, "", false},
		"nonsense": {map[string]string{"tcp": "   0: x:0016 y 0A" + rest}, "", true},
		"short":    {map[string]string{"tcp": "   0:\n"}, "", true},
	} {
		dir := t.TempDir()
		for file, text := range tc.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(heading+text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		found, err := listeners(dir)
		if got := hostport.Text(found); got != tc.want || (err != nil) != tc.wrong {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
	}
	if _, err := listeners(hostNet); err != nil {
		t.Errorf("this machine: %v", err)
	}
}

// TestSockets: sock_diag and the tables show the same.
func TestSockets(t *testing.T) {
	listen := func(network, address string) uint16 {
		t.Helper()
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, address)
			if err != nil {
				t.Skip(err) // without IPv6
			}
			t.Cleanup(func() { c.Close() })
			return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		}
		l, err := net.Listen(network, address)
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.Addr().(*net.TCPAddr).AddrPort().Port()
	}
	for _, tc := range []struct {
		network, address        string
		family, protocol, state uint8
	}{
		{"tcp4", "127.0.0.1:0", unix.AF_INET, unix.IPPROTO_TCP, tcpListening},
		{"tcp6", "[::1]:0", unix.AF_INET6, unix.IPPROTO_TCP, tcpListening},
		{"udp4", "127.0.0.1:0", unix.AF_INET, unix.IPPROTO_UDP, udpOpen},
		{"udp6", "[::1]:0", unix.AF_INET6, unix.IPPROTO_UDP, udpOpen},
	} {
		t.Run(tc.network, func(t *testing.T) {
			host, _, _ := net.SplitHostPort(tc.address)
			want := netip.AddrPortFrom(netip.MustParseAddr(host), listen(tc.network, tc.address))
			asked, err := sockets(tc.family, tc.protocol, tc.state)
			if err != nil {
				t.Skipf("a kernel without sock_diag: %v", err)
			}
			read, err := inTable(filepath.Join(hostNet, strings.TrimSuffix(tc.network, "4")), tc.state)
			if err != nil || !slices.Contains(asked, want) || !slices.Contains(read, want) {
				t.Errorf("%v: sock_diag shows %v, the table %v, error %v", want, asked, read, err)
			}
		})
	}
}

// TestReportsPorts: the Node has the ports of its host, those of a moment ago as well, and nothing is written twice.
func TestReportsPorts(t *testing.T) {
	ctx, now := t.Context(), time.Now()
	listening := sets.New(tcp(22))
	cs := fake.NewClientset()
	r := &reporter{opts: Options{NodeName: "n1"}, client: cs, seen: map[hostport.Port]time.Time{}, listeners: func() (sets.Set[hostport.Port], error) { return listening, nil }}
	step := func(what string, after time.Duration, want string, writes int) {
		t.Helper()
		now = now.Add(after)
		cs.ClearActions()
		ok, err := r.report(ctx, now)
		if err != nil || ok != (want != "-") {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
		patches := slices.DeleteFunc(cs.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() != "patch" })
		node, err := cs.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if want == "-" {
			return
		}
		if got := node.Annotations[names.HostPortsAnnotation]; err != nil || got != want || len(patches) != writes {
			t.Errorf("%s: %q after %d writes, %v, want %q", what, got, len(patches), err, want)
		}
	}
	step("there is no Node", 0, "-", 0)
	if _, err := cs.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{names.HostPortsAnnotation: "111/UDP", "a": "b"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	step("what it had before stays", time.Second, "22/TCP,111/UDP", 1)
	step("nothing new", time.Second, "22/TCP,111/UDP", 0)
	listening = sets.New(tcp(80))
	step("another port", time.Second, "22/TCP,80/TCP,111/UDP", 1)
	step("not yet forgotten", rememberFor-time.Minute, "22/TCP,80/TCP,111/UDP", 0)
	step("forgotten", 2*time.Minute, "80/TCP", 1)
	if err := cs.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	step("it is gone", readEvery, "-", 0)
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	again.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
	if _, err := cs.CoreV1().Nodes().Create(ctx, again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	step("it registered again", time.Second, "-", 0)
	again.Status.Conditions[0].Status = corev1.ConditionTrue
	if _, err := cs.CoreV1().Nodes().UpdateStatus(ctx, again, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	step("and is Ready", time.Second, "80/TCP", 1)
	listening = nil
	step("no program listens", rememberFor+time.Second, "", 1)
	step("which is reported", time.Second, "", 0)
}

func tcp(number int32) hostport.Port {
	return hostport.Port{Protocol: corev1.ProtocolTCP, Number: number}
}
