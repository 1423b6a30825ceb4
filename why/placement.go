package why

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Placement reports for each node whether it would take a pod, and if not, why. why/placement computes it with
// upstream's scheduler; it is a function so that a program that only asks about Services links no scheduler.
type Placement func(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, nodes []corev1.Node, pods []corev1.Pod) ([]Verdict, error)

// Verdict is the answer of one scheduler plugin about a pod on a node.
type Verdict struct {
	Node string
	// Plugin is the first one that refuses the node, as upstream names it: NodeResourcesFit. "" is a node that fits.
	Plugin string
	// Reasons are the plugin's own words.
	Reasons []string
}
