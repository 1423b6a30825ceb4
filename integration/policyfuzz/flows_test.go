package policyfuzz

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/integration/harness"
)

// flow is an open connection, or what UDP has of one.
type flow struct {
	probe
	ends [2]*end // the client's, the server's
}

// end is one end of it.
type end struct {
	send func(string)

	mu       sync.Mutex
	received strings.Builder
}

func (e *end) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.received.Write(b)
}

func (e *end) got(text string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Contains(e.received.String(), text)
}

// openFlow opens one, on its own port, and sends something in both directions.
func (f *fuzz) openFlow(t *testing.T, p probe) *flow {
	t.Helper()
	out := &flow{probe: p, ends: [2]*end{{}, {}}}
	from, to := f.w.endpoints[p.From], f.w.endpoints[p.To]
	target := netip.AddrPortFrom(to.ips[p.Family], uint16(p.Port))
	network := strings.ToLower(string(p.Protocol))
	server := make(chan net.Conn, 1)
	var l net.Listener
	var u *net.UDPConn
	err := to.netns.Do(func(ns.NetNS) (err error) {
		if p.Protocol == corev1.ProtocolTCP {
			l, err = net.ListenTCP(network, net.TCPAddrFromAddrPort(target))
		} else {
			u, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(target))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if l != nil {
		defer l.Close()
		go func() {
			c, _ := l.Accept() // nil when it is closed
			server <- c
		}()
	}
	var client net.Conn
	err = from.netns.Do(func(ns.NetNS) (err error) {
		source := netip.AddrPortFrom(from.ips[p.Family], 0)
		if p.Protocol == corev1.ProtocolTCP {
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(source), Timeout: harness.Patience(patience)}
			client, err = d.Dial(network, target.String())
			return err
		}
		client, err = net.DialUDP(network, net.UDPAddrFromAddrPort(source), net.UDPAddrFromAddrPort(target))
		return err
	})
	if err != nil {
		t.Fatalf("open %s: %v", f.w.text(p), err)
	}
	t.Cleanup(func() { client.Close() })
	out.ends[0].send = func(s string) { io.WriteString(client, s) }
	go io.Copy(out.ends[0], client)
	if l != nil {
		c := <-server
		t.Cleanup(func() { c.Close() })
		out.ends[1].send = func(s string) { io.WriteString(c, s) }
		go io.Copy(out.ends[1], c)
		return out
	}
	t.Cleanup(func() { u.Close() })
	io.WriteString(client, "hello")
	var b [16]byte
	u.SetReadDeadline(time.Now().Add(harness.Patience(patience)))
	_, peer, err := u.ReadFromUDPAddrPort(b[:])
	if err != nil {
		t.Fatalf("open %s: %v", f.w.text(p), err)
	}
	u.SetReadDeadline(time.Time{})
	out.ends[1].send = func(s string) { u.WriteToUDPAddrPort([]byte(s), peer) }
	go io.Copy(out.ends[1], u)
	return out
}

// TestOpenFlows changes what is allowed while connections are open: those that are forbidden now end in both
// directions, the others live on.
func TestOpenFlows(t *testing.T) {
	f := newFuzz(t)
	base := &state{Unknown: map[types.UID]bool{}}
	for _, name := range []string{"blue", "red"} {
		base.Namespaces = append(base.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": name}}})
	}
	base.Namespaces = append(base.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}})
	for i := range locals + remotes {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: f.w.endpoints[i].name, UID: types.UID(f.w.endpoints[i].name), Labels: map[string]string{"app": "x"},
		}}
		if i%4 >= 2 {
			p.Namespace = "red"
		}
		p.Status.Phase = corev1.PodRunning
		for _, ip := range f.w.endpoints[i].ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip.String()})
		}
		base.Slots = append(base.Slots, p)
	}
	policy := func(s *state, spec string) {
		t.Helper()
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "p"}}
		if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
			t.Fatal(err)
		}
		s.Policies = []*networkingv1.NetworkPolicy{p}
	}
	far := locals + remotes + 1
	pairs := [][2]int{
		{0, 1}, {1, 0}, {0, 2}, {2, 0}, {2, 3}, // on the bridge: within blue, between blue and red, within red
		{0, locals}, {locals, 0}, {0, far}, {far, 0}, {2, far}, {far, 2}, // with another node's pod, and outside
		{0, len(f.w.endpoints) - 2}, {2, len(f.w.endpoints) - 1}, // to the node
	}
	const everything = "podSelector: {}\npolicyTypes: [Ingress, Egress]\ningress: [{}]\negress: [{}]"
	for _, c := range []struct {
		name   string
		before string
		change func(*state)
	}{
		{"a first policy closes ingress", "", func(s *state) { policy(s, "podSelector: {}\npolicyTypes: [Ingress]") }},
		{"a first policy closes egress", "", func(s *state) { policy(s, "podSelector: {}\npolicyTypes: [Egress]") }},
		{"a policy's rules are removed", everything, func(s *state) { policy(s, "podSelector: {}\npolicyTypes: [Ingress, Egress]") }},
		{"a policy's ports", everything, func(s *state) {
			policy(s, "podSelector: {}\npolicyTypes: [Ingress, Egress]\ningress: [{ports: [{port: 7000, endPort: 7030}]}]\negress: [{}]")
		}},
		{"a policy's protocol", everything, func(s *state) {
			policy(s, "podSelector: {}\npolicyTypes: [Ingress, Egress]\ningress: [{ports: [{protocol: UDP}]}]\negress: [{}]")
		}},
		{"a policy's addresses", everything, func(s *state) {
			policy(s, "podSelector: {}\npolicyTypes: [Ingress, Egress]\ningress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]\negress: [{to: [{ipBlock: {cidr: \"::/0\"}}]}, {to: [{podSelector: {}}]}]")
		}},
		{"labels of pods", "podSelector: {}\npolicyTypes: [Ingress, Egress]\ningress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}, {ipBlock: {cidr: 2001:db8::/32}}, {namespaceSelector: {}, podSelector: {matchLabels: {app: x}}}]}]\negress: [{}]", func(s *state) {
			s.Slots[1].Labels, s.Slots[2].Labels, s.Slots[locals].Labels = nil, nil, nil
		}},
		{"labels of a namespace", "podSelector: {}\npolicyTypes: [Ingress, Egress]\ningress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}, {ipBlock: {cidr: 2001:db8::/32}}, {namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}}]}]\negress: [{}]", func(s *state) {
			s.Namespaces[1].Labels = nil
		}},
		{"labels of the selected pod", "podSelector: {matchLabels: {app: \"y\"}}\npolicyTypes: [Ingress, Egress]", func(s *state) {
			s.Slots[0].Labels = map[string]string{"app": "y"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := base.clone()
			if c.before != "" {
				policy(before, c.before)
			}
			after := before.clone()
			c.change(after)
			if err := f.subject.restart(before); err != nil {
				t.Fatal(err)
			}
			var open []*flow
			var probes []probe
			for i, pair := range pairs {
				for family := range 2 {
					for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
						p := probe{From: pair[0], To: pair[1], Family: family, Protocol: protocol, Port: 7000 + 4*i + 2*family}
						open = append(open, f.openFlow(t, p))
						probes = append(probes, p)
					}
				}
			}
			f.checkFlows(t, "before", before, open, probes)
			if err := f.subject.change(after, rand.New(rand.NewPCG(seed, 2))); err != nil {
				t.Fatal(err)
			}
			if ended, living := f.checkFlows(t, "after", after, open, probes); ended == 0 || living == 0 {
				t.Errorf("the change ends %d flows, and %d live on", ended, living)
			} else {
				t.Logf("%d flows ended, %d live on", ended, living)
			}
		})
	}
}

// checkFlows sends something in both directions of each.
func (f *fuzz) checkFlows(t *testing.T, when string, s *state, open []*flow, probes []probe) (ended, living int) {
	t.Helper()
	allowed, err := f.oracle.verdicts(f.w, s, probes)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range open {
		for i, e := range o.ends {
			e.send(fmt.Sprintf("<%s %d>", when, i))
		}
	}
	for i, o := range open {
		if !allowed[i] {
			ended++
			continue
		}
		living++
		harness.Eventually(t, patience, when+": "+f.w.text(o.probe), func() error {
			for j, e := range o.ends {
				if !e.got(fmt.Sprintf("<%s %d>", when, 1-j)) {
					return fmt.Errorf("the %s got nothing", [...]string{"client", "server"}[j])
				}
			}
			return nil
		})
	}
	time.Sleep(300 * time.Millisecond) // TCP has sent it again by now
	for i, o := range open {
		for j, e := range o.ends {
			if !allowed[i] && e.got(fmt.Sprintf("<%s %d>", when, 1-j)) {
				t.Errorf("%s: %s: forbidden now, but the %s got something", when, f.w.text(o.probe), [...]string{"client", "server"}[j])
			}
		}
	}
	return ended, living
}
