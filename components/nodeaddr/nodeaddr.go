// Package nodeaddr says which of the addresses in the status of Nodes can be theirs. A node writes them itself, so that one whose
// machine is compromised may name any: the API's, another node's, that of a Service.
//
// It looks at Nodes and at nothing else. That a node really is at an address of its own choice only the node can prove
// (components/servicelb).
package nodeaddr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Labels of nodes; agents cannot set them (components/apiserver/restriction).
const (
	RoleLabel  = "kubelith.io/role"
	RoleServer = "server"
)

// Rules are what nodes' addresses are held against.
type Rules struct {
	// Networks are those of pods and Services, in which no node is.
	Networks []netip.Prefix
	// API are the addresses of the API, which servers alone may have.
	API []netip.Addr
	// APIPort is where it listens; 0: nobody asks.
	APIPort uint16
}

// Parse makes rules of what the configuration has checked; what is no address, as a name among others, is left out.
func Parse(networks, api []string) (r Rules) {
	for _, text := range networks {
		if p, err := netip.ParsePrefix(text); err == nil {
			r.Networks = append(r.Networks, p)
		}
	}
	for _, text := range api {
		if ip, err := netip.ParseAddr(text); err == nil {
			r.API = append(r.API, ip.Unmap())
		}
	}
	return r
}

// Addresses are those of one node.
type Addresses struct {
	// Own can be the node's, in the order of its status.
	Own []netip.Addr
	// Refused says of the others why they cannot.
	Refused []string
}

// Of returns the addresses of each of the nodes by name. Of two nodes with the same address the older one is right.
func (r Rules) Of(nodes []*corev1.Node) map[string]Addresses {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	owner, all := map[netip.Addr]string{}, map[string]Addresses{}
	for _, n := range nodes {
		var found Addresses
		for _, ip := range addresses(n) {
			if why := r.objection(n, ip, owner[ip]); why != "" {
				found.Refused = append(found.Refused, fmt.Sprintf("%s is %s", ip, why))
				continue
			}
			if owner[ip] == "" { // it may be its internal and its external one
				found.Own = append(found.Own, ip)
			}
			owner[ip] = n.Name
		}
		all[n.Name] = found
	}
	return all
}

// objection says what an address is, other than the node's.
func (r Rules) objection(n *corev1.Node, ip netip.Addr, owner string) string {
	switch {
	case !ip.IsGlobalUnicast():
		return "not an address at which others reach a node"
	case slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return "in the network of pods or Services"
	case n.Labels[RoleLabel] != RoleServer && slices.Contains(r.API, ip):
		return "an address of the API"
	case owner != "" && owner != n.Name:
		return "the address of the node " + owner
	}
	return ""
}

// addresses are all that a node reports.
func addresses(n *corev1.Node) (all []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Zone() == "" {
			all = append(all, ip.Unmap())
		}
	}
	return all
}
