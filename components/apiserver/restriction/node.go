package restriction

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
)

// Names that other packages have too; they would be imports of one component by another.
const (
	roleLabel         = "kubelith.io/role" // components/config
	roleAgent         = "agent"
	machineLabel      = "kubelith.io/machine" // components/config
	reservationPrefix = "kubelith-node."      // components/approver
	machineKey        = "machine"
)

// node judges what a node writes into its own Node; that it is its own NodeRestriction sees to. Labels and addresses come with
// every subresource.
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
				return fmt.Sprintf("a node may not change the label %s of its own: kubectl label node does", key), nil
			}
		}
	}
	for _, address := range node.Status.Addresses {
		// What it has on its interfaces is internal. The others are for whoever has rights on all nodes to say.
		if (address.Type == core.NodeExternalIP || address.Type == core.NodeExternalDNS) && !slices.Contains(old.Status.Addresses, address) {
			return fmt.Sprintf("a node may not give itself the %s %s", address.Type, address.Address), nil
		}
	}
	return "", nil
}

// own reports whether a label is Kubelith's: of kubelith.io or a domain below it.
func own(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == "kubelith.io" || strings.HasSuffix(domain, ".kubelith.io")
}

// labelOf reports whether a node may give itself a label of ours: what its kubelet registers with, and no other.
func (p *Plugin) labelOf(ctx context.Context, node, key, value string) (bool, error) {
	switch {
	case key == roleLabel:
		return value == roleAgent, nil
	case key == machineLabel:
		return p.machineOf(ctx, node, value)
	case strings.HasPrefix(key, "topology."): // of a storage plugin; the kubelet sets it
		return value == node, nil
	}
	return false, nil
}

// machineOf reports whether the machine is the one for which the node's name is reserved. There is no reservation after a Node was
// deleted, until it joins again.
func (p *Plugin) machineOf(ctx context.Context, node, machine string) (bool, error) {
	reservation, err := p.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, reservationPrefix+node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the reservation of the name %s: %w", node, err)
	}
	reserved := reservation.Data[machineKey]
	return machine == reserved[:min(len(reserved), validation.LabelValueMaxLength)], nil
}
