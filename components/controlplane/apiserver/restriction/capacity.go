package restriction

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/storage"
)

// capacity checks the CSIStorageCapacities with which a node reports its space to the scheduler: they must be its own.
func (p *Plugin) capacity(ctx context.Context, node string, a admission.Attributes) (string, error) {
	for _, o := range []any{a.GetOldObject(), a.GetObject()} {
		c, ok := o.(*storage.CSIStorageCapacity)
		if !ok {
			continue // there is no old one, or no new one
		}
		if owners := c.OwnerReferences; len(owners) != 1 || owners[0].Kind != "Node" || owners[0].APIVersion != "v1" || owners[0].Name != node {
			return fmt.Sprintf("the Node %s must be the only owner of the CSIStorageCapacity", node), nil
		}
		if a.GetOperation() == admission.Delete {
			continue
		}
		class, err := p.client.StorageV1().StorageClasses().Get(ctx, c.StorageClassName, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			return fmt.Sprintf("StorageClass %s does not exist", c.StorageClassName), nil
		}
		if err != nil {
			return "", fmt.Errorf("read the StorageClass %s: %w", c.StorageClassName, err)
		}
		key, err := p.topologyKey(ctx, class.Provisioner)
		if err != nil {
			return "", err
		}
		if key == "" || c.NodeTopology == nil || c.NodeTopology.MatchLabels[key] != node {
			return fmt.Sprintf("the CSIStorageCapacity is not for node %s: nodeTopology must select %s=%s", node, key, node), nil
		}
	}
	return "", nil
}
