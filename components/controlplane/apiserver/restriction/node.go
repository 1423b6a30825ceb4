package restriction

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

	"kubelith.io/kubelith/base/names"
)

// node checks what a node writes into its own Node; NodeRestriction checks that the Node is its own. Labels,
// annotations and addresses can be written through every subresource.
func (p *Plugin) node(ctx context.Context, name string, a admission.Attributes) (string, error) {
	if a.GetOperation() == admission.Delete {
		return "", nil
	}
	node, ok := a.GetObject().(*core.Node)
	if !ok {
		return fmt.Sprintf("unexpected type %T", a.GetObject()), nil
	}
	old, ok := a.GetOldObject().(*core.Node)
	if !ok {
		old = &core.Node{}
	}
	for _, labels := range []map[string]string{old.Labels, node.Labels} {
		for key := range labels {
			before, had := old.Labels[key]
			after, has := node.Labels[key]
			if before == after && had == has || !own(key) {
				continue
			}
			allowed, err := p.labelOf(ctx, name, key, after)
			if err != nil {
				return "", err
			}
			if !has || !allowed {
				return fmt.Sprintf("a node may not change its own label %s: use kubectl label node", key), nil
			}
		}
	}
	for _, address := range node.Status.Addresses {
		// Addresses of its interfaces are internal. Others it may only claim (names.ExternalIPAnnotation).
		if (address.Type == core.NodeExternalIP || address.Type == core.NodeExternalDNS) && !slices.Contains(old.Status.Addresses, address) {
			return fmt.Sprintf("a node may not set the %s %s on itself", address.Type, address.Address), nil
		}
	}
	return p.wireGuardKey(ctx, name, old.Annotations[names.WireGuardKeyAnnotation], node.Annotations[names.WireGuardKeyAnnotation])
}

// wireGuardKey refuses a node the key of another Node: keys are public, and of two that claim one the younger loses its
// tunnels.
func (p *Plugin) wireGuardKey(ctx context.Context, name, before, after string) (string, error) {
	if after == before || after == "" {
		return "", nil
	}
	key, err := wgtypes.ParseKey(after)
	if err != nil {
		return "a node may only publish a WireGuard key of 32 bytes in base64", nil
	}
	all, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list Nodes: %w", err)
	}
	for _, n := range all.Items {
		if has, err := wgtypes.ParseKey(n.Annotations[names.WireGuardKeyAnnotation]); err == nil && has == key && n.Name != name {
			return fmt.Sprintf("a node may not publish the WireGuard key of Node %s", n.Name), nil
		}
	}
	return "", nil
}

// own reports whether a label is Kubelith's: of kubelith.io or a domain below it.
func own(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == "kubelith.io" || strings.HasSuffix(domain, ".kubelith.io")
}

// labelOf reports whether a node may set a Kubelith label on itself: only those with which its kubelet registers.
func (p *Plugin) labelOf(ctx context.Context, node, key, value string) (bool, error) {
	switch {
	case key == names.RoleLabel:
		return value == names.RoleAgent, nil
	case key == names.MachineLabel:
		return p.machineOf(ctx, node, value)
	case strings.HasPrefix(key, "topology."): // a storage plugin's; the kubelet sets it
		return value == node, nil
	}
	return false, nil
}

// machineOf reports whether the node's name is reserved for the machine. After a Node was deleted there is no
// reservation until it joins again.
func (p *Plugin) machineOf(ctx context.Context, node, machine string) (bool, error) {
	reservation, err := p.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, names.ReservationPrefix+node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the reservation of the name %s: %w", node, err)
	}
	reserved := reservation.Data[names.ReservationMachine]
	return machine == reserved[:min(len(reserved), validation.LabelValueMaxLength)], nil
}
