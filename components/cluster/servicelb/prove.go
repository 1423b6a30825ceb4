package servicelb

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
)

const (
	// proveEvery is the time between two rounds over addresses without proof.
	proveEvery = 5 * time.Second
	// proveAtOnce is how many handshakes run at a time.
	proveAtOnce = 32
	// refutedAfter is how many handshakes in a row must fail before an address is removed from a Service that has it.
	// Kubelets restart.
	refutedAfter = 4
)

// prover checks that agents are at the addresses that they report: their kubelets serve there with a certificate that
// has the node's name and the address. A node that reports the address of another machine cannot answer there.
//
// External addresses need no proof: an agent cannot set one (components/controlplane/apiserver/restriction,
// components/cluster/approver), and its kubelet often cannot be reached there. Addresses of servers need none either:
// their kubelets are in trusted processes.
type prover struct {
	rules nodeaddr.Rules
	shake func(ctx context.Context, node string, at netip.AddrPort) error

	mu    sync.Mutex
	known map[place]*proof
}

// place is an address of a node; another node of that name has another UID.
type place struct {
	node types.UID
	ip   netip.Addr
}

type proof struct {
	given  bool
	failed int // handshakes in a row, while the node was Ready
	err    error
}

func newProver(o Options, shake func(context.Context, string, netip.AddrPort) error) *prover {
	return &prover{rules: o.Addresses, shake: shake, known: map[place]*proof{}}
}

// needs reports whether the address needs a proof.
func (p *prover) needs(n *corev1.Node, ip netip.Addr) bool {
	if n.Labels[names.RoleLabel] == names.RoleServer {
		return false
	}
	return !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		other, err := netip.ParseAddr(a.Address)
		return err == nil && other.Unmap() == ip && a.Type == corev1.NodeExternalIP
	})
}

// proven implements world. What a Service has was proven to an earlier process, until the contrary is clear.
func (p *prover) proven(n *corev1.Node, ip netip.Addr, held bool) bool {
	if !p.needs(n, ip) {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[place{n.UID, ip}]
	return known != nil && known.given || held && (known == nil || known.failed < refutedAfter)
}

// refuted returns a line for each address at which a node was not found.
func (p *prover) refuted(n *corev1.Node, all []netip.Addr) (lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ip := range all {
		if known := p.known[place{n.UID, ip}]; known != nil && !known.given && known.failed >= refutedAfter {
			lines = append(lines, fmt.Sprintf("cannot verify its kubelet at %s (%v)", ip, known.err))
		}
	}
	return lines
}

// round runs the missing proofs, and reports whether there are new results.
func (p *prover) round(ctx context.Context, nodes []*corev1.Node) (news bool) {
	believed, wanted := p.rules.Of(nodes), map[place]bool{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(proveAtOnce)
	var mu sync.Mutex
	for _, n := range nodes {
		port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
		if n.Labels[names.RoleLabel] == "" || port <= 0 || port > 65535 {
			continue
		}
		for _, ip := range believed[n.Name].Own {
			at := place{n.UID, ip}
			wanted[at] = true
			if !p.needs(n, ip) || p.proven(n, ip, false) {
				continue
			}
			group.Go(func() error {
				err := p.shake(ctx, n.Name, netip.AddrPortFrom(ip, uint16(port)))
				if ctx.Err() == nil && p.note(at, err, reports(n, false)) {
					mu.Lock()
					defer mu.Unlock()
					news = true
				}
				return nil
			})
		}
	}
	_ = group.Wait() // none returns an error
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := range p.known {
		if !wanted[at] {
			delete(p.known, at)
		}
	}
	return news
}

// note records the result of a handshake, and reports whether that changes anything.
func (p *prover) note(at place, err error, ready bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[at]
	if known == nil {
		known = &proof{}
		p.known[at] = known
	}
	if err == nil {
		known.given = true
		return true
	}
	if ready {
		known.failed++
	}
	known.err = err
	return known.failed == refutedAfter
}

// prove runs one round.
func (w *writer) prove(ctx context.Context) (news bool) {
	nodes, err := w.nodes.List(labels.Everything())
	return err == nil && w.prover.round(ctx, nodes) // a lister fails only when its index is broken
}

// keepProving runs rounds until ctx ends.
func (w *writer) keepProving(ctx context.Context) {
	tick := time.NewTicker(proveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if w.prove(ctx) {
			w.changed.Send()
		}
	}
}
