package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nft"
)

// reconcile brings the kernel in line with the Nodes, and reports whether it had to change anything.
func (s *Server) reconcile(ctx context.Context, nodes []*corev1.Node) (changed bool, err error) {
	switch s.third.Load() {
	case undecided:
		return false, nil
	case yes:
		return false, s.withdraw(ctx)
	}
	want, err := s.wanted(nodes)
	if errors.Is(err, errNoNode) {
		return false, nil // an earlier run's entries may serve running pods
	}
	if err != nil {
		return false, err
	}
	var unpublished error
	if want.backend == WireGuard {
		if unpublished = s.publish(ctx, nodes); s.tunnel == nil {
			return false, unpublished
		}
	}
	peers := s.reachable(nodes, want)
	if len(peers) == 0 {
		s.endSession()
		return false, errors.Join(s.remove(ctx), unpublished)
	}
	if want.backend == WireGuard {
		changed, err := s.ensureTunnel(ctx, want, peers)
		return changed, errors.Join(err, unpublished)
	}
	begun, err := s.ensureSession(ctx, want, peers)
	if err != nil {
		return false, err
	}
	corrected, err := s.ensureEntries(want, peers)
	return begun || corrected, err
}

// wanted returns how to connect this node.
func (s *Server) wanted(nodes []*corev1.Node) (setup, error) {
	i := slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == s.opts.NodeName })
	if i >= 0 {
		// The addresses are those of this process's options: the Node may have those of an earlier run.
		own := describe(nodes[i])
		own.v4.address, own.v6.address = netip.Addr{}, netip.Addr{}
		for _, ip := range s.opts.NodeIPs {
			if a, ok := netip.AddrFromSlice(ip); ok {
				own.half(a).address = a.Unmap()
			}
		}
		for _, h := range []*half{&own.v4, &own.v6} {
			if !h.on() {
				*h = half{}
			}
		}
		if own.on() {
			own.member, own.key = true, wgtypes.Key{}
			s.own = own
		}
	}
	if !s.own.on() {
		return setup{}, errNoNode
	}
	p, err := parentOf(s.own)
	if err != nil {
		return setup{}, err
	}
	return setup{s.opts.Backend, s.own, p}, checkMTU(s.opts.Backend, p, s.own.v6.on())
}

// ensureSession begins a session unless the running one is as wanted, with its devices. Before that, the packet filter
// must be there.
func (s *Server) ensureSession(ctx context.Context, want setup, peers []node) (changed bool, err error) {
	intact := false
	if s.session != nil && s.session.setup == want {
		if intact, err = want.intact(); err != nil {
			return false, err
		}
	}
	if !intact {
		s.endSession()
		if err := s.clearDevices(want); err != nil {
			return false, err
		}
	}
	if want.backend == VXLAN {
		changed, err = s.closeGate(ctx, peers)
	} else if !intact {
		err = s.openGate()
	}
	if intact || err != nil {
		return changed, err
	}
	if s.session, err = begin(ctx, want, s.cluster); err != nil {
		return false, err
	}
	s.parent.Store(int32(want.parent.index))
	if _, err := want.intact(); err != nil { // marks the devices
		return false, err
	}
	s.opts.Log.Infof("pods of other nodes are reached through %s over %s, with an MTU of %d", want.backend, want.parent.name, want.podMTU())
	return true, nil
}

// endSession leaves the kernel's entries.
func (s *Server) endSession() {
	if s.tunnel != nil {
		s.tunnel.begun = setup{}
	}
	if s.session == nil {
		return
	}
	if err := s.session.end(); err != nil {
		s.opts.Log.WithError(err).Warn("cannot stop flannel's backend")
	}
	s.session = nil
}

// reachable returns the peers that the backend can reach.
func (s *Server) reachable(nodes []*corev1.Node, want setup) []node {
	list, refused := peers(nodes, want.own, s.cluster)
	if want.backend == HostGW {
		list = slices.DeleteFunc(list, func(n node) bool {
			for _, h := range []half{n.v4, n.v6} {
				if !h.on() {
					continue
				}
				switch ok, err := direct(want.parent, h.address); {
				case err != nil:
					refused[n.name] = err.Error()
				case !ok:
					refused[n.name] = fmt.Sprintf("there is a router between its address %s and %s: use --network vxlan", h.address, want.parent.name)
				default:
					continue
				}
				return true
			}
			return false
		})
	}
	if want.backend == WireGuard {
		list = s.tunnel.withKeys(list, refused)
	}
	for _, n := range nodes {
		if why := refused[n.Name]; s.logged.News("node "+n.Name, why) {
			s.opts.Log.Warnf("cannot reach the pods of node %s: %s", n.Name, why)
		}
	}
	return list
}

// ensureEntries adds the entries that peers lack, with flannel as far as it is used, and removes entries that no peer
// needs.
func (s *Server) ensureEntries(want setup, peers []node) (changed bool, err error) {
	links, err := want.links()
	if err != nil {
		return false, err
	}
	now, err := readKernel(s.cluster, links)
	if err != nil {
		return false, err
	}
	needs := map[string][]entry{}
	for _, p := range peers {
		needs[p.name] = want.entriesOf(p, links)
	}
	if want.backend == WireGuard {
		needs[""] = want.refusals(s.cluster)
	}
	incomplete, stale := now.difference(needs)
	if want.backend == WireGuard {
		for name := range incomplete {
			err = errors.Join(err, addRoutes(needs[name]))
		}
	} else {
		err = s.session.add(slices.DeleteFunc(peers, func(p node) bool { return !incomplete[p.name] }))
	}
	return len(incomplete)+len(stale) > 0, errors.Join(err, s.removeEntries(now, stale))
}

// removeEntries removes entries that are no longer needed.
func (s *Server) removeEntries(now kernel, stale []entry) error {
	var errs []error
	for _, e := range stale {
		if err := now[e](); err != nil {
			errs = append(errs, fmt.Errorf("remove the %s: %w", e, err))
			continue
		}
		s.opts.Log.Debugf("removed the %s", e)
	}
	return errors.Join(errs...)
}

// links returns the indices of the setup's devices.
func (s setup) links() (map[string]int, error) {
	out := map[string]int{}
	for _, d := range s.devices() {
		link, err := netlink.LinkByName(d.name)
		if err != nil {
			return nil, fmt.Errorf("the interface %s: %w", d.name, err)
		}
		out[d.name] = link.Attrs().Index
	}
	return out, nil
}

// closeGate admits VXLAN packets of the peers only.
func (s *Server) closeGate(ctx context.Context, peers []node) (changed bool, err error) {
	if err := s.findGate(); err != nil {
		return false, err
	}
	return s.gate.ensure(ctx, sources(peers))
}

// openGate removes what closeGate wrote; no device may be left.
func (s *Server) openGate() error {
	s.gate = nil
	if err := nft.Remove(knftables.InetFamily, names.VXLANTable); err != nil {
		return fmt.Errorf("remove the packet filter of VXLAN: %w", err)
	}
	return nil
}

func (s *Server) findGate() (err error) {
	if s.gate == nil {
		s.gate, err = newGate()
	}
	return err
}

// withdraw leaves the connection to other nodes to a third party.
func (s *Server) withdraw(ctx context.Context) error {
	if s.session != nil {
		s.opts.Log.Info("a third-party network connects the nodes")
	}
	s.endSession()
	return s.remove(ctx)
}

// remove removes our devices, with everything on them, our routes, and the packet filter.
func (s *Server) remove(ctx context.Context) error {
	if err := s.clearDevices(setup{}); err != nil {
		return err
	}
	now, err := readKernel(s.cluster, nil)
	if err != nil {
		return err
	}
	_, stale := now.difference(nil)
	if len(stale) > 0 {
		s.opts.Log.Infof("removing %d routes to other nodes", len(stale))
	}
	return errors.Join(s.removeEntries(now, stale), s.openGate())
}
