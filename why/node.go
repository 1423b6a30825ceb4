package why

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeObject(node *corev1.Node) Object { return objectAs("node", node) }

func nodeCondition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	return first(node.Status.Conditions, func(c *corev1.NodeCondition) bool { return c.Type == kind })
}

// explainNode explains a node.
func explainNode(ctx context.Context, r *Reader, node *corev1.Node) (*Finding, error) {
	if f := nodeNotReady(ctx, r, node); f != nil {
		return f, nil
	}
	o := nodeObject(node)
	for _, kind := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable,
	} {
		if c := nodeCondition(node, kind); c != nil && c.Status == corev1.ConditionTrue {
			return broken(NodePressure, fmt.Sprintf("%s reports %s: %s", o, kind, firstOf(c.Message, c.Reason))).since(c.LastTransitionTime).
				sawAt(fmt.Sprintf("%s .status.conditions[%s]", o, kind), "True, "+c.Reason, c.LastTransitionTime).
				do("Free what the condition names on this machine; until then the kubelet evicts pods there and takes no new ones."), nil
		}
	}
	c := nodeCondition(node, corev1.NodeReady)
	f := found(Healthy, OK, fmt.Sprintf("%s has been Ready since %s", o, clock(c.LastTransitionTime))).since(c.LastTransitionTime)
	f.sawAt(o.String()+" .status.conditions[Ready]", "True, "+c.Message, c.LastTransitionTime)
	if node.Spec.Unschedulable {
		f.Code, f.Cause = NodeCordoned, fmt.Sprintf("%s is Ready and cordoned: its pods run, but it gets no new ones", o)
		f.saw(o.String()+" .spec.unschedulable", "true").do("When the maintenance is done:", kubectl("", "uncordon %s", node.Name))
	}
	return f, nil
}

// nodeNotReady explains a node that is not Ready; nil: it is.
func nodeNotReady(ctx context.Context, r *Reader, node *corev1.Node) *Finding {
	o, c := nodeObject(node), nodeCondition(node, corev1.NodeReady)
	if c != nil && c.Status == corev1.ConditionTrue {
		return nil
	}
	if c == nil {
		f := found(Progressing, InProgress, fmt.Sprintf("in progress: the kubelet of %s has not reported yet", o)).since(node.CreationTimestamp)
		if r.age(node.CreationTimestamp) > fresh {
			f.Status, f.Code, f.Cause = Broken, NodeNotReady, fmt.Sprintf("the kubelet of %s has never reported", o)
		}
		return f.sawAt(o.String()+" .metadata.creationTimestamp", "created; it has no condition Ready", node.CreationTimestamp).
			do("On that machine: is kubelith agent running? Its log says what it waits for.")
	}
	where := o.String() + " .status.conditions[Ready]"
	if c.Status == corev1.ConditionUnknown {
		f := broken(NodeNotReady, fmt.Sprintf("node %s does not report any more: the machine, its network or its kubelet is down", node.Name))
		f.since(c.LastTransitionTime).sawAt(where, fmt.Sprintf("Unknown, %s: %s", c.Reason, c.Message), c.LastTransitionTime)
		leases := r.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		lease, err := get(ctx, r, "leases.coordination.k8s.io", corev1.NamespaceNodeLease, node.Name, leases.Get)
		if err == nil && lease.Spec.RenewTime != nil {
			f.sawAt("lease/"+node.Name+" in kube-node-lease .spec.renewTime", "the kubelet's last sign of life",
				metav1.Time{Time: lease.Spec.RenewTime.Time})
		}
		return f.not(NodePressure, "the node is short of memory or disk", "nothing is known of it: all its conditions are Unknown").
			do("Check the machine: is it up, does kubelith run there, can it reach the API server?",
				"If it will not come back:", "kubelith node remove "+node.Name)
	}
	f := broken(NodeNotReady, fmt.Sprintf("node %s is not Ready: %s", node.Name, firstOf(c.Message, c.Reason))).since(c.LastTransitionTime)
	if r.age(node.CreationTimestamp) < fresh {
		f.Status, f.Code = Progressing, InProgress
	}
	return f.sawAt(where, fmt.Sprintf("False, %s: %s", c.Reason, c.Message), c.LastTransitionTime).
		not(NodeGone, "the machine does not answer", "its kubelet reports: the condition is False, not Unknown").
		do("On that machine, read the kubelet's log, and run kubelith check.")
}
