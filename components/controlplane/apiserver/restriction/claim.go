package restriction

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
)

const (
	// cloneProtection is the finalizer of claims that are being copied. Source: external-provisioner.
	cloneProtection = "provisioner.storage.kubernetes.io/cloning-protection"
	// noExpansion is the annotation of claims whose growth needs no work by the kubelet. Source: external-resizer.
	noExpansion = "volume.kubernetes.io/node-expansion-not-required"
)

// claim checks what the storage controllers of a node write into PersistentVolumeClaims: that they take a claim or
// return it to the scheduler, that it is being copied, and how it grows.
func (p *Plugin) claim(ctx context.Context, node string, a admission.Attributes) (string, error) {
	old, hadOld := a.GetOldObject().(*core.PersistentVolumeClaim)
	now, hasNow := a.GetObject().(*core.PersistentVolumeClaim)
	if a.GetOperation() != admission.Update || !hadOld || !hasNow {
		return "the storage controllers of a node may only update PersistentVolumeClaims", nil
	}
	switch a.GetSubresource() {
	case "":
		if !same(old, now, func(c *core.PersistentVolumeClaim) {
			delete(c.Annotations, selectedNode)
			c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == cloneProtection })
		}) {
			return fmt.Sprintf("the storage controllers of a node may change only the annotation %s and the finalizer %s "+
				"of a PersistentVolumeClaim", selectedNode, cloneProtection), nil
		}
		switch before, after := old.Annotations[selectedNode], now.Annotations[selectedNode]; {
		case before == after:
		case before == "" && after == node:
			return p.mayTake(ctx, old)
		case before != node || after != "" || old.Spec.VolumeName != "":
			return fmt.Sprintf("the PersistentVolumeClaim already has the selected node %q", before), nil
		}
	case "status":
		if !same(old, now, func(c *core.PersistentVolumeClaim) {
			delete(c.Annotations, noExpansion)
			c.Status.Capacity, c.Status.Conditions = nil, nil
			c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil
		}) {
			return "the storage controllers of a node may change only size and conditions in the status of a PersistentVolumeClaim", nil
		}
	default:
		return "the storage controllers of a node may not write " + a.GetSubresource(), nil
	}
	return p.isHere(ctx, node, old)
}

// same reports whether two claims differ only in what ignore removes.
func same(a, b *core.PersistentVolumeClaim, ignore func(*core.PersistentVolumeClaim)) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, c := range []*core.PersistentVolumeClaim{a, b} {
		c.ResourceVersion, c.ManagedFields = "", nil
		ignore(c)
	}
	return apiequality.Semantic.DeepEqual(a, b)
}

// mayTake returns the reason why a claim without a chosen node is not for the first node that takes it.
func (p *Plugin) mayTake(ctx context.Context, c *core.PersistentVolumeClaim) (string, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := corev1conversion.Convert_core_PersistentVolumeClaim_To_v1_PersistentVolumeClaim(c, claim, nil); err != nil {
		return "", err
	}
	class, err := p.classOf(ctx, claim)
	if err != nil {
		return "", err
	}
	if mode := class.VolumeBindingMode; claim.Spec.VolumeName != "" || mode != nil && *mode != storagev1.VolumeBindingImmediate {
		return "only the scheduler selects the node of the PersistentVolumeClaim", nil
	}
	key, err := p.topologyKey(ctx, class.Provisioner)
	if err != nil {
		return "", err
	}
	if key == "" {
		return fmt.Sprintf("the volume of the PersistentVolumeClaim belongs to %q, which has no node-local volumes", class.Provisioner), nil
	}
	return "", nil
}

// isHere returns the reason why a claim is not the node's: its volume is not on the node, or it has none and is to get
// one elsewhere.
func (p *Plugin) isHere(ctx context.Context, node string, c *core.PersistentVolumeClaim) (string, error) {
	if c.Spec.VolumeName == "" {
		if c.Annotations[selectedNode] != node {
			return fmt.Sprintf("the PersistentVolumeClaim is not for a volume on node %s", node), nil
		}
		return "", nil
	}
	volume, err := p.client.CoreV1().PersistentVolumes().Get(ctx, c.Spec.VolumeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("PersistentVolume %s does not exist", c.Spec.VolumeName), nil
	}
	if err != nil {
		return "", fmt.Errorf("read the PersistentVolume %s: %w", c.Spec.VolumeName, err)
	}
	internal := &core.PersistentVolume{}
	if err := corev1conversion.Convert_v1_PersistentVolume_To_core_PersistentVolume(volume, internal, nil); err != nil {
		return "", err
	}
	return p.isOn(ctx, node, internal)
}

// classOf returns the StorageClass of a claim, an empty one when there is none.
func (p *Plugin) classOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := claim.Annotations[corev1.BetaStorageClassAnnotation]
	if name == "" && claim.Spec.StorageClassName != nil {
		name = *claim.Spec.StorageClassName
	}
	if name == "" {
		return &storagev1.StorageClass{}, nil
	}
	class, err := p.client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		return &storagev1.StorageClass{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the StorageClass %s: %w", name, err)
	}
	return class, nil
}
