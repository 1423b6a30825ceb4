package policyfuzz

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// kind is where an endpoint is.
type kind int

const (
	local   kind = iota // a pod of this node, whose policies are enforced here
	remote              // a pod of another node, which enforces its policies
	outside             // of no pod
	node                // this node itself
)

// endpoint is where connections begin and end: an address of each family in a network namespace.
type endpoint struct {
	kind  kind
	name  string
	netns ns.NetNS
	ips   [2]netip.Addr // IPv4, IPv6

	kept [2]*client // UDP sockets that live as long as the world
	sctp [2]*net.IPConn
}

// world is a node with a bridge and pods, as podlink connects them, and a router behind which everything else is:
//
//	pods 10.77.0.x, fd77::x --- bridge of the node --- 10.78.0.1 --- 10.78.0.2: pods of another node 10.77.1.x, fd77:0:0:1::x,
//	                                                                  and 192.0.2.x, 198.51.100.x, 2001:db8::x
type world struct {
	router    ns.NetNS
	endpoints []*endpoint
	patience  time.Duration
	current   atomic.Pointer[exchange]
}

const (
	locals, remotes = 8, 4
	dnsPort         = 10053 // on which the node answers DNS
)

var (
	// ports on which every endpoint listens, TCP and UDP.
	ports = []int{80, 81, 443, 8080, 9000}
	// services have an address each, whose port 80 is that port of the endpoint.
	services = []struct{ endpoint, port int }{{0, 8080}, {1, 81}, {locals, 443}, {locals + remotes, 9000}}
	dnsVIPs  = serviceIPs(9)
)

func serviceIPs(i int) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", i+1)), netip.MustParseAddr(fmt.Sprintf("fd96::%x", i+1))}
}

// newWorld builds it. Nothing of it has a name on this machine: it ends with the test, however that ends.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{patience: harness.Patience(patience)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func() ns.NetNS {
		n, err := newNetns()
		must(err)
		t.Cleanup(func() { n.Close() })
		return n
	}
	w.router = open()
	must(w.router.Do(func(ns.NetNS) error { return setUpRouter() }))
	add := func(k kind, n ns.NetNS, v4, v6 string) {
		e := &endpoint{kind: k, netns: n, ips: [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}}
		e.name = fmt.Sprintf("%s-%d", [...]string{"local", "remote", "outside", "node"}[k], len(w.endpoints))
		w.endpoints = append(w.endpoints, e)
	}
	for i := range locals {
		pod := open()
		v4, v6 := fmt.Sprintf("10.77.0.%d", 10+i), fmt.Sprintf("fd77::%x", 10+i)
		must(w.router.Do(func(ns.NetNS) error { return plug(pod, fmt.Sprintf("veth%d", i), "cni0") }))
		must(pod.Do(func(ns.NetNS) error { return setUp("10.77.0.1", "fd77::1", v4+"/24", v6+"/64") }))
		add(local, pod, v4, v6)
	}
	far := open()
	must(w.router.Do(func(ns.NetNS) error { return plug(far, "uplink", "") }))
	for i := range remotes {
		add(remote, far, fmt.Sprintf("10.77.1.%d", 10+i), fmt.Sprintf("fd77:0:0:1::%x", 10+i))
	}
	add(outside, far, "10.78.0.2", "fd78::2")
	add(outside, far, "192.0.2.10", "2001:db8:1::10")
	add(outside, far, "192.0.2.140", "2001:db8:1::8010")
	add(outside, far, "198.51.100.10", "2001:db8:2::10")
	addresses := []string{"10.78.0.2/24", "fd78::2/64"}
	for _, e := range w.endpoints[locals:] {
		if e.ips[0].String() != "10.78.0.2" {
			addresses = append(addresses, e.ips[0].String()+"/32", e.ips[1].String()+"/128")
		}
	}
	must(far.Do(func(ns.NetNS) error { return setUp("10.78.0.1", "fd78::1", addresses...) }))
	must(w.router.Do(func(ns.NetNS) error { return route() }))
	add(node, w.router, "10.77.0.1", "fd77::1")
	add(node, w.router, "10.78.0.1", "fd78::1")
	must(w.router.Do(func(ns.NetNS) error { return w.translate() }))
	for _, e := range w.endpoints {
		must(w.serve(t, e))
	}
	w.warmUp(t)
	return w
}

// warmUp returns when all probes that are possible come through, while there are no rules.
func (w *world) warmUp(t *testing.T) {
	t.Helper()
	var probes []probe
	var all []bool
	for from := range w.endpoints {
		for to := range w.endpoints {
			for family := range 2 {
				if p := (probe{From: from, To: to, Family: family, Protocol: corev1.ProtocolUDP, Port: ports[0]}); w.passes(p) {
					probes, all = append(probes, p), append(all, true)
				}
			}
		}
	}
	harness.Eventually(t, 4*patience, "a network without rules", func() error {
		outcomes, err := w.try(probes, all, nil)
		if err != nil {
			return err
		}
		for i, o := range outcomes {
			if o != answered {
				return fmt.Errorf("%s: %s", w.text(probes[i]), o)
			}
		}
		return nil
	})
}

// newNetns returns a network namespace that lasts as long as a process has it open.
func newNetns() (n ns.NetNS, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return
		}
		for _, of := range []string{"all", "default"} { // addresses are there at once
			err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv6/conf/"+of+"/accept_dad", []byte("0"), 0o644))
		}
		if err == nil {
			n, err = ns.GetCurrentNS()
		}
	}()
	<-done
	return n, err
}

func setUpRouter() error {
	settings := []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding", "bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"}
	for _, s := range settings { // as components/worker/cni does
		if err := os.WriteFile(filepath.Join("/proc/sys/net", s), []byte("1"), 0o644); err != nil {
			return fmt.Errorf("%w (is the kernel module br_netfilter loaded?)", err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "cni0"
	attrs.HardwareAddr = net.HardwareAddr{2, 0x77, 0, 0, 0, 1}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return err
	}
	return errors.Join(up("lo"), up("cni0", "10.77.0.1/24", "fd77::1/64"))
}

// plug connects a namespace with the current one, by a port of a bridge if there is one.
func plug(other ns.NetNS, name, bridge string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if bridge != "" {
		link, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		attrs.MasterIndex = link.Attrs().Index
	}
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(other.Fd()))}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	if bridge == "" {
		return up(name, "10.78.0.1/24", "fd78::1/64")
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetHairpin(link, true), up(name))
}

// up gives an interface addresses and sets it up.
func up(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range addresses {
		address, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if address.IP.To4() == nil {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, name, err)
		}
	}
	return nil
}

// setUp sets up the namespace at the other end of plug.
func setUp(gateway4, gateway6 string, addresses ...string) error {
	if err := errors.Join(up("lo"), up("eth0", addresses...)); err != nil {
		return err
	}
	return errors.Join(addRoute("0.0.0.0/0", gateway4), addRoute("::/0", gateway6))
}

// route adds the node's routes to everything.
func route() error {
	var errs []error
	for _, r := range [][2]string{
		{"10.77.1.0/24", "10.78.0.2"}, {"192.0.2.0/24", "10.78.0.2"}, {"198.51.100.0/24", "10.78.0.2"},
		{"fd77:0:0:1::/64", "fd78::2"}, {"2001:db8::/32", "fd78::2"},
	} {
		errs = append(errs, addRoute(r[0], r[1]))
	}
	return errors.Join(errs...)
}

func addRoute(to, via string) error {
	_, destination, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: destination, Gw: net.ParseIP(via)}); err != nil {
		return fmt.Errorf("route to %s via %s: %w", to, via, err)
	}
	return nil
}

// translate writes what kube-proxy and the pod network would: Services, and the node's address for pods that leave the
// cluster.
func (w *world) translate() error {
	var b strings.Builder
	b.WriteString("table inet translate {\n chain enter { type nat hook prerouting priority dstnat;\n")
	family := [2]string{"ip", "ip6"}
	for f, name := range family {
		dnat := func(vip netip.Addr, port int, to netip.Addr, toPort int) {
			fmt.Fprintf(&b, "  %s daddr %s meta l4proto { tcp, udp } th dport %d dnat %s to %s\n", name, vip, port, name, netip.AddrPortFrom(to, uint16(toPort)))
		}
		for i, s := range services {
			dnat(serviceIPs(i)[f], 80, w.endpoints[s.endpoint].ips[f], s.port)
		}
		dnat(dnsVIPs[f], 53, w.endpoints[len(w.endpoints)-1].ips[f], dnsPort)
	}
	b.WriteString(" }\n chain leave { type nat hook postrouting priority srcnat;\n")
	b.WriteString("  ip saddr 10.77.0.0/16 ip daddr != 10.77.0.0/16 oifname uplink masquerade\n")
	b.WriteString("  ip6 saddr fd77::/48 ip6 daddr != fd77::/48 oifname uplink masquerade\n }\n}\n")
	return runNft(b.String())
}

// runNft runs nft's commands in the current namespace.
func runNft(commands string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w\n%s\n%s", err, out, commands)
	}
	return nil
}

// forgetNeighbours makes an endpoint and the node ask again for the addresses of others.
func (w *world) forgetNeighbours(i int) error {
	forget := func(ns.NetNS) error {
		all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, n := range all {
			if n.State&(netlink.NUD_NOARP|netlink.NUD_PERMANENT) == 0 && n.Family != unix.AF_BRIDGE {
				if e := netlink.NeighDel(&n); !errors.Is(e, unix.ENOENT) {
					err = errors.Join(err, e)
				}
			}
		}
		return err
	}
	return errors.Join(w.endpoints[i].netns.Do(forget), w.router.Do(forget))
}
