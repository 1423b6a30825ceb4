package approver

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodeutil "k8s.io/component-helpers/node/util"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
)

// newFor is how long after the creation of its Node an agent may claim external addresses. The machine has just shown a
// token; later it may have another owner, and an administrator has to allow it (names.ExternalIPLabel).
const newFor = 10 * time.Minute

// reasonExternalIP is that of the Event about an address that a Node does not get.
const reasonExternalIP = "ExternalIPRefused"

// addressed returns the addresses that a Node should have, and why it does not get others that it claims. Its kubelet
// leaves its addresses to a cloud provider, and this is in its place: the kubelet's addresses, as it reports them
// there, and the external ones. Without such a kubelet ok is false.
func (s *Server) addressed(node *corev1.Node, all []*corev1.Node) (want []corev1.NodeAddress, refused []string, ok bool) {
	claims, claimed := node.Annotations[names.ExternalIPAnnotation]
	provided, external := node.Annotations[cloudproviderapi.AnnotationAlphaProvidedIPAddr]
	internal, err := nodeutil.ParseNodeIPAnnotation(provided)
	if !claimed || !external || err != nil || len(node.Status.Addresses) == 0 { // empty: the kubelet is about to write them
		return nil, nil, false
	}
	for _, ip := range internal {
		want = append(want, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	for _, claim := range strings.Split(claims, ",") {
		ip := net.ParseIP(claim)
		if ip == nil {
			continue
		}
		if why := s.objection(node, ip, all); why != "" {
			refused = append(refused, fmt.Sprintf("%s does not become an ExternalIP: %s", ip, why))
			continue
		}
		want = append(want, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip.String()})
	}
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			want = append(want, a)
		}
	}
	return want, refused, true
}

// objection returns why a Node does not get an external address, or "".
func (s *Server) objection(node *corev1.Node, ip net.IP, all []*corev1.Node) string {
	has := slices.Contains(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip.String()})
	server := s.isServer(node.Name, node)
	if !server { // the API's address may be the server's
		api, err := s.apiNames()
		if err != nil {
			return err.Error()
		}
		if why := s.reservedIP(ip, api); why != "" {
			return why
		}
	}
	for _, other := range all {
		older := cmp.Or(other.CreationTimestamp.Compare(node.CreationTimestamp.Time), strings.Compare(other.Name, node.Name)) < 0
		if other.Name != node.Name && namesOf(other)[ip.String()] && (older || !has) {
			return "node " + other.Name + " has it"
		}
	}
	if !server && !has && node.Labels[names.ExternalIPLabel] != names.ExternalIPAllowed && s.now().Sub(node.CreationTimestamp.Time) > newFor {
		return fmt.Sprintf("the node has existed for more than %s: if it is right, run kubectl label node %s %s=%s",
			newFor, node.Name, names.ExternalIPLabel, names.ExternalIPAllowed)
	}
	return ""
}

// uninitialized is the taint with which a kubelet registers that leaves its addresses to a cloud provider.
func uninitialized(t corev1.Taint) bool { return t.Key == cloudproviderapi.TaintExternalCloudProvider }

// unaddressed reports whether a Node's addresses are to be corrected.
func (s *Server) unaddressed(object any) bool {
	node, ok := object.(*corev1.Node)
	if !ok || node.Annotations[names.ExternalIPAnnotation] == "" {
		return false
	}
	all, _ := s.nodes.List(labels.Everything()) // from memory: it does not fail
	want, refused, ok := s.addressed(node, all)
	return ok && (len(refused) > 0 || !slices.Equal(want, node.Status.Addresses) || slices.ContainsFunc(node.Spec.Taints, uninitialized))
}

// address corrects the addresses of Nodes.
func (s *Server) address(ctx context.Context) {
	all, _ := s.nodes.List(labels.Everything())
	for _, node := range all {
		want, refused, ok := s.addressed(node, all)
		if !ok {
			continue
		}
		if why := strings.Join(refused, "; "); s.refused.News(node.Name, why) {
			s.opts.Log.Warnf("node %s: %s", node.Name, why)
			s.events.Event(events.Node(node.Name), corev1.EventTypeWarning, reasonExternalIP, why)
		}
		if err := s.writeAddresses(ctx, node, want); err != nil {
			s.opts.Log.Warnf("cannot correct the addresses of node %s, retrying in %s: %v", node.Name, tidyEvery, err)
		}
	}
}

// writeAddresses writes what differs. A Node that another client changes meanwhile gets them with its next event.
func (s *Server) writeAddresses(ctx context.Context, node *corev1.Node, want []corev1.NodeAddress) error {
	write := func(part string, content any, subresources ...string) (err error) {
		change := map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, part: content}
		node, err = nodepatch.Merge(ctx, s.client, node.Name, change, subresources...)
		return err
	}
	if !slices.Equal(want, node.Status.Addresses) {
		if err := write("status", map[string]any{"addresses": want}, "status"); err != nil {
			return err
		}
	}
	if taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), uninitialized); len(taints) < len(node.Spec.Taints) {
		return write("spec", map[string]any{"taints": taints})
	}
	return nil
}
