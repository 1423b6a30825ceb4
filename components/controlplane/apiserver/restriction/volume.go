package restriction

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

	"kubelith.io/kubelith/base/names"
)

// selectedNode is the annotation with which the scheduler, or a provisioner, selects the node of a claim's volume.
const selectedNode = "volume.kubernetes.io/selected-node"

// volume checks what the storage controllers of a node write into PersistentVolumes: they create volumes for claims
// whose selected node is theirs, expand them, and delete them.
func (p *Plugin) volume(ctx context.Context, node string, a admission.Attributes) (string, error) {
	if a.GetSubresource() != "" {
		return "the storage controllers of a node may not write " + a.GetSubresource(), nil
	}
	old, hadOld := a.GetOldObject().(*core.PersistentVolume)
	now, hasNow := a.GetObject().(*core.PersistentVolume)
	switch {
	case a.GetOperation() == admission.Create && hasNow:
		return firstOf(ctx,
			func(ctx context.Context) (string, error) { return p.isOn(ctx, node, now) },
			func(ctx context.Context) (string, error) { return p.isFor(ctx, node, now) })
	case a.GetOperation() == admission.Update && hadOld && hasNow:
		if why, err := p.isOn(ctx, node, old); why != "" || err != nil {
			return why, err
		}
		was, is := old.Spec.DeepCopy(), now.Spec.DeepCopy()
		was.Capacity, is.Capacity = nil, nil
		if !apiequality.Semantic.DeepEqual(was, is) {
			return "the storage controllers of a node may change only the capacity in the spec of a PersistentVolume", nil
		}
		return "", nil
	case a.GetOperation() == admission.Delete && hadOld:
		return p.isOn(ctx, node, old)
	}
	return fmt.Sprintf("unexpected types %T, %T", a.GetOldObject(), a.GetObject()), nil
}

// isOn returns the reason why a volume does not belong to a node-local driver on the node.
func (p *Plugin) isOn(ctx context.Context, node string, v *core.PersistentVolume) (string, error) {
	if v.Spec.CSI == nil {
		return "the PersistentVolume has no CSI driver", nil
	}
	key, err := p.topologyKey(ctx, v.Spec.CSI.Driver)
	if err != nil {
		return "", err
	}
	if key == "" {
		return fmt.Sprintf("the CSIDriver %s has no annotation %s: its volumes are not node-local", v.Spec.CSI.Driver, names.NodeLocalAnnotation), nil
	}
	elsewhere := func(term core.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(r core.NodeSelectorRequirement) bool {
			return r.Key == key && r.Operator == core.NodeSelectorOpIn && slices.Equal(r.Values, []string{node})
		})
	}
	affinity := v.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil || len(affinity.Required.NodeSelectorTerms) == 0 ||
		slices.ContainsFunc(affinity.Required.NodeSelectorTerms, elsewhere) {
		return fmt.Sprintf("the PersistentVolume is not on node %s alone: its node affinity must require %s in [%s]", node, key, node), nil
	}
	return "", nil
}

// isFor returns the reason why no claim waits for a new volume on the node.
func (p *Plugin) isFor(ctx context.Context, node string, v *core.PersistentVolume) (string, error) {
	// A node may read the Secrets of the volumes of its pods.
	if s := v.Spec.CSI; s.ControllerPublishSecretRef != nil || s.NodeStageSecretRef != nil || s.NodePublishSecretRef != nil ||
		s.ControllerExpandSecretRef != nil || s.NodeExpandSecretRef != nil {
		return "a PersistentVolume created by a node cannot have Secrets", nil
	}
	ref := v.Spec.ClaimRef
	if ref == nil {
		return "the PersistentVolume has no claimRef", nil
	}
	claim, err := p.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.UID != ref.UID {
		return fmt.Sprintf("PersistentVolumeClaim %s/%s with the UID %s does not exist", ref.Namespace, ref.Name, ref.UID), nil
	}
	if err != nil {
		return "", fmt.Errorf("read the PersistentVolumeClaim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	if claim.Annotations[selectedNode] != node || claim.Spec.VolumeName != "" && claim.Spec.VolumeName != v.Name {
		return fmt.Sprintf("PersistentVolumeClaim %s/%s is not waiting for a volume on node %s", ref.Namespace, ref.Name, node), nil
	}
	class, err := p.classOf(ctx, claim)
	if err != nil {
		return "", err
	}
	policy := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	if class.Name == "" || class.Provisioner != v.Spec.CSI.Driver || v.Spec.StorageClassName != class.Name ||
		string(v.Spec.PersistentVolumeReclaimPolicy) != string(policy) {
		return fmt.Sprintf("the PersistentVolume must have the driver, class and reclaim policy of the StorageClass of the claim %s/%s",
			ref.Namespace, ref.Name), nil
	}
	return "", nil
}

// firstOf returns the first objection.
func firstOf(ctx context.Context, rules ...func(context.Context) (string, error)) (string, error) {
	for _, rule := range rules {
		if why, err := rule(ctx); why != "" || err != nil {
			return why, err
		}
	}
	return "", nil
}
