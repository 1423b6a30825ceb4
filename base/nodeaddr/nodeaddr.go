// Package nodeaddr decides which of the addresses in the status of Nodes can be theirs. A node writes them itself, so a
// node on a compromised machine may claim any: the API's, another node's, that of a Service.
//
// Rules check only Nodes. Only the node can prove that it really has an address that it chose itself (Handshake).
package nodeaddr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/names"
)

// Rules are what nodes' addresses are checked against.
type Rules struct {
	// Networks are those of pods and Services, which contain no node.
	Networks []netip.Prefix
	// API are the addresses of the API, which servers alone may have.
	API []netip.Addr
	// APIPort is the API's port; 0: not needed.
	APIPort uint16
}

// Parse creates rules from the checked configuration; it leaves out what is not an address, such as a name.
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

// APINames returns the names and addresses of the API that servers have published on their Nodes.
func APINames(nodes []*corev1.Node) (all []string) {
	for _, n := range nodes {
		if published := n.Annotations[names.APINamesAnnotation]; published != "" && n.Labels[names.RoleLabel] == names.RoleServer {
			all = append(all, strings.Split(published, ",")...)
		}
	}
	return all
}

// With returns the rules with the addresses of the API that servers have published on their Nodes.
func (r Rules) With(nodes []*corev1.Node) Rules {
	r.API = append(slices.Clone(r.API), Parse(nil, APINames(nodes)).API...)
	return r
}

// Addresses are those of one node.
type Addresses struct {
	// Own are the addresses that can be the node's, in the order of its status.
	Own []netip.Addr
	// Refused has the reason why each of the others cannot.
	Refused []string
}

// Of returns the addresses of each of the nodes by name. If two nodes have the same address, the older one keeps it.
func (r Rules) Of(nodes []*corev1.Node) map[string]Addresses {
	r, nodes = r.With(nodes), slices.Clone(nodes)
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
			if owner[ip] == "" { // it may be both its internal and its external address
				found.Own = append(found.Own, ip)
			}
			owner[ip] = n.Name
		}
		all[n.Name] = found
	}
	return all
}

// objection returns what an address is, if not the node's.
func (r Rules) objection(n *corev1.Node, ip netip.Addr, owner string) string {
	switch {
	case !ip.IsGlobalUnicast():
		return "not an address at which other machines can reach a node"
	case slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return "in the network of pods or Services"
	case n.Labels[names.RoleLabel] != names.RoleServer && slices.Contains(r.API, ip):
		return "an address of the API server"
	case owner != "" && owner != n.Name:
		return "the address of the node " + owner
	}
	return ""
}

// addresses returns all addresses that a node reports.
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
