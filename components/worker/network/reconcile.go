package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
)

// reconcile brings the kernel in line with the Nodes, and reports whether it had to change anything.
func (s *Server) reconcile(ctx context.Context, nodes []*corev1.Node) (changed bool, err error) {
	switch s.third.Load() {
	case undecided:
		return false, nil
	case yes:
		return false, s.withdraw()
	}
	want, err := s.wanted(nodes)
	if errors.Is(err, errNoNode) {
		return false, nil // an earlier run's entries may serve running pods
	}
	if err != nil {
		return false, err
	}
	begun, err := s.ensureSession(ctx, want)
	if err != nil {
		return false, err
	}
	corrected, err := s.ensureEntries(want, s.reachable(nodes, want))
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
			own.member = true
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

// ensureSession begins a session unless the running one is as wanted, with its devices.
func (s *Server) ensureSession(ctx context.Context, want setup) (begun bool, err error) {
	if s.session != nil && s.session.setup == want {
		if intact, err := want.intact(); err != nil || intact {
			return false, err
		}
	}
	s.endSession()
	if err := s.clearDevices(want); err != nil {
		return false, err
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
	for _, n := range nodes {
		if why := refused[n.Name]; s.logged.News("node "+n.Name, why) {
			s.opts.Log.Warnf("cannot reach the pods of node %s: %s", n.Name, why)
		}
	}
	return list
}

// ensureEntries has flannel add the entries that peers lack, and removes entries that no peer needs.
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
	incomplete, stale := now.difference(needs)
	err = s.session.add(slices.DeleteFunc(peers, func(p node) bool { return !incomplete[p.name] }))
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

// withdraw leaves the connection to other nodes to a third party.
func (s *Server) withdraw() error {
	if s.session != nil {
		s.opts.Log.Info("a third-party network connects the nodes")
	}
	s.endSession()
	return s.remove(setup{})
}

// remove removes our devices, with everything on them, and routes that are not part of the setup.
func (s *Server) remove(keep setup) error {
	if err := s.clearDevices(keep); err != nil {
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
	return s.removeEntries(now, stale)
}
