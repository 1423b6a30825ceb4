package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
)

// tunnel is the WireGuard device with a peer for each other node. The kernel keeps it without the process; an update
// changes only what differs, while packets pass.
type tunnel struct {
	client kubernetes.Interface
	key    wgtypes.Key // the private one
	begun  setup       // as it was last logged
	// told is the endpoint that each peer was given by this process. WireGuard itself replaces it by the address from
	// which the peer's packets come, and that stays.
	told map[wgtypes.Key]netip.AddrPort
}

// Ports implements lifecycle.Listener. The kernel listens; a device of an earlier run has the port already.
func (s *Server) Ports() []lifecycle.Port {
	if s.opts.Backend != WireGuard {
		return nil
	}
	if link, err := find(names.WireGuardLink); err == nil && link != nil {
		return nil
	}
	return []lifecycle.Port{{Network: "udp", Address: "::", Number: names.WireGuardPort}}
}

// publish writes the node's public key into its Node. The first call reads or generates the key.
func (s *Server) publish(ctx context.Context, nodes []*corev1.Node) error {
	if s.tunnel == nil {
		key, err := keyOf(s.opts.KeyFile)
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(s.opts.Client)
		if err != nil {
			return fmt.Errorf("client to publish the WireGuard key: %w", err)
		}
		s.tunnel = &tunnel{client: client, key: key, told: map[wgtypes.Key]netip.AddrPort{}}
	}
	public := s.tunnel.key.PublicKey()
	i := slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == s.opts.NodeName })
	if i < 0 || describe(nodes[i]).key == public {
		return nil
	}
	err := nodepatch.Annotate(ctx, s.tunnel.client, s.opts.NodeName, names.WireGuardKeyAnnotation, public.String())
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("publish the WireGuard key: %w", err)
	}
	return nil
}

// keyOf reads the private key, or generates it when there is no file.
func keyOf(file string) (wgtypes.Key, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return wgtypes.Key{}, fmt.Errorf("generate the WireGuard key: %w", err)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return wgtypes.Key{}, err
		}
		return key, atomicfile.Write(file, []byte(key.String()+"\n"))
	}
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("the WireGuard key: %w", err)
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("the WireGuard key in %s is damaged: remove the file, and another is generated", file)
	}
	return key, nil
}

// withKeys takes the key from nodes that claim this node's or an older one's. Nodes without a key stay in the list:
// their pods are not reached otherwise either.
func (t *tunnel) withKeys(list []node, refused map[string]string) []node {
	taken := map[wgtypes.Key]string{t.key.PublicKey(): "this node"}
	for i, n := range list {
		switch owner := taken[n.key]; {
		case n.key == (wgtypes.Key{}):
			refused[n.name] = "it has not published a WireGuard key"
		case owner != "":
			refused[n.name] = "its WireGuard key is that of " + owner
			list[i].key = wgtypes.Key{}
		default:
			taken[n.key] = "the older node " + n.name
		}
	}
	return list
}

// ensureTunnel brings the device, its peers and the routes in line.
func (s *Server) ensureTunnel(ctx context.Context, want setup, peers []node) (changed bool, err error) {
	if err := s.clearDevices(want); err != nil {
		return false, err
	}
	news := s.tunnel.begun != want
	if news { // VXLAN's filter is not needed any more
		if err := s.openGate(); err != nil {
			return false, err
		}
	}
	link, made, err := ensureLink(want)
	if err != nil {
		return false, err
	}
	told, err := s.tunnel.tell(peers)
	if err != nil {
		return made, err
	}
	dressed, err := want.dress(link)
	if err != nil {
		return true, err
	}
	corrected, err := s.ensureEntries(want, peers)
	if err == nil && news {
		s.tunnel.begun = want
		s.parent.Store(int32(want.parent.index))
		s.opts.Log.Infof("pods of other nodes are reached through %s over %s, with an MTU of %d", want.backend, want.parent.name, want.podMTU())
	}
	return made || told || dressed || corrected, err
}

// ensureLink returns the device, which it creates if necessary: not yet up.
func ensureLink(want setup) (link netlink.Link, made bool, err error) {
	link, err = find(names.WireGuardLink)
	if err != nil || link != nil {
		return link, false, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Alias = names.WireGuardLink, want.podMTU(), names.LinkAlias
	if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
		return nil, false, fmt.Errorf("create the interface %s: %w", names.WireGuardLink, err)
	}
	link, err = netlink.LinkByName(names.WireGuardLink)
	return link, true, err
}

// tell gives the device its key, port and peers, as far as they differ.
func (t *tunnel) tell(peers []node) (changed bool, err error) {
	control, err := wgctrl.New()
	if err != nil {
		return false, fmt.Errorf("WireGuard: %w", err)
	}
	defer control.Close()
	now, err := control.Device(names.WireGuardLink)
	if err != nil {
		return false, fmt.Errorf("read the interface %s: %w", names.WireGuardLink, err)
	}
	config, differs := t.changes(now, peers)
	if differs {
		if err := control.ConfigureDevice(names.WireGuardLink, config); err != nil {
			return false, occupied(fmt.Errorf("configure the interface %s: %w", names.WireGuardLink, err))
		}
	}
	clear(t.told)
	for _, n := range peers {
		t.told[n.key] = endpointOf(n)
	}
	return differs, nil
}

// changes returns the configuration that gives a device these peers, and no others.
func (t *tunnel) changes(now *wgtypes.Device, peers []node) (c wgtypes.Config, differs bool) {
	if now.PrivateKey != t.key {
		c.PrivateKey = &t.key
	}
	if listen := names.WireGuardPort; now.ListenPort != listen {
		c.ListenPort = &listen
	}
	has, needed := map[wgtypes.Key]wgtypes.Peer{}, map[wgtypes.Key]bool{}
	for _, p := range now.Peers {
		has[p.PublicKey] = p
	}
	for _, n := range peers {
		needed[n.key] = true
	}
	for _, p := range now.Peers {
		if !needed[p.PublicKey] {
			c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
		}
	}
	for _, n := range peers {
		if n.key == (wgtypes.Key{}) {
			continue
		}
		p, there := has[n.key]
		change := wgtypes.PeerConfig{PublicKey: n.key}
		at := endpointOf(n)
		if p.Endpoint == nil || t.told[n.key] != at && p.Endpoint.AddrPort() != at {
			change.Endpoint = net.UDPAddrFromAddrPort(at)
		}
		if pods := n.podCIDRs(); !samePrefixes(p.AllowedIPs, pods) {
			change.ReplaceAllowedIPs = true
			for _, prefix := range pods {
				change.AllowedIPs = append(change.AllowedIPs, *ipNet(prefix))
			}
		}
		if !there || change.Endpoint != nil || change.ReplaceAllowedIPs {
			c.Peers = append(c.Peers, change)
		}
	}
	return c, c.PrivateKey != nil || c.ListenPort != nil || len(c.Peers) > 0
}

// endpointOf returns where a node receives WireGuard's packets.
func endpointOf(n node) netip.AddrPort {
	if n.v4.on() {
		return netip.AddrPortFrom(n.v4.address, names.WireGuardPort)
	}
	return netip.AddrPortFrom(n.v6.address, names.WireGuardPort)
}

// podCIDRs returns the networks of the node's pods that are reached.
func (n node) podCIDRs() (out []netip.Prefix) {
	for _, h := range []half{n.v4, n.v6} {
		if h.on() {
			out = append(out, h.pods)
		}
	}
	return out
}

func samePrefixes(has []net.IPNet, want []netip.Prefix) bool {
	return len(has) == len(want) && !slices.ContainsFunc(want, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(has, func(n net.IPNet) bool { return n.String() == p.String() })
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// dress gives the device its MTU, mark and addresses, and takes it up. As with flannel's devices, the address is the
// first of the node's pods: what the node itself sends to other nodes' pods has it, and comes from where its pods are.
func (s setup) dress(link netlink.Link) (changed bool, err error) {
	attrs := link.Attrs()
	var steps []func() error
	step := func(f func() error) { steps = append(steps, f) }
	if mtu := s.podMTU(); attrs.MTU != mtu {
		step(func() error { return netlink.LinkSetMTU(link, mtu) })
	}
	if attrs.Alias != names.LinkAlias {
		step(func() error { return netlink.LinkSetAlias(link, names.LinkAlias) })
	}
	has, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if failed(err) {
		return false, fmt.Errorf("list the addresses of %s: %w", attrs.Name, err)
	}
	var want []string
	for _, pods := range s.own.podCIDRs() {
		address := netip.PrefixFrom(pods.Addr(), pods.Addr().BitLen())
		want = append(want, address.String())
		if !slices.ContainsFunc(has, func(a netlink.Addr) bool { return a.IPNet.String() == address.String() }) {
			step(func() error { return netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(address)}) })
		}
	}
	for _, a := range has {
		if !slices.Contains(want, a.IPNet.String()) && a.Scope != unix.RT_SCOPE_LINK {
			step(func() error { return netlink.AddrDel(link, &a) })
		}
	}
	if attrs.Flags&net.FlagUp == 0 {
		step(func() error { return occupied(netlink.LinkSetUp(link)) })
	}
	for _, f := range steps {
		if err := f(); err != nil {
			return true, fmt.Errorf("the interface %s: %w", attrs.Name, err)
		}
	}
	return len(steps) > 0, nil
}

// occupied names the cause of a failure to listen.
func occupied(err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("another program uses the UDP port %d: stop that program", names.WireGuardPort)
	}
	return err
}

// refuseMetric is that of the routes that refuse: every other route precedes them.
const refuseMetric = 1 << 20

// refusals are routes for all pods' addresses: packets without a tunnel are refused, not sent in plain text.
func (s setup) refusals(cluster []netip.Prefix) (out []entry) {
	for _, c := range cluster {
		if s.own.half(c.Addr()).on() {
			out = append(out, entry{kind: routeEntry, dst: c})
		}
	}
	return out
}

// addRoutes adds entries that are routes without a gateway.
func addRoutes(entries []entry) error {
	for _, e := range entries {
		r := &netlink.Route{Dst: ipNet(e.dst), LinkIndex: e.link, Protocol: names.RouteProtocol}
		switch {
		case e.link == 0:
			r.Type, r.Priority = unix.RTN_UNREACHABLE, refuseMetric
		case e.dst.Addr().Is4():
			r.Scope = netlink.SCOPE_LINK
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("add the %s: %w", e, err)
		}
	}
	return nil
}
