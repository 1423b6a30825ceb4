package kubelet

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"

	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/reconcile"
)

// registerRetry is the time between two attempts to register again.
const registerRetry = time.Second

// keepRegistered creates the Node object again when it is deleted, until ctx ends. Upstream's kubelet registers once in
// its life; but here its next start is also that of the API server, and a cluster without its only node does not work
// until then. The kubelet writes its reports (addresses, capacity, conditions) into any object of its name.
func (s *Server) keepRegistered(ctx context.Context, cs kubernetes.Interface) {
	if !s.upstream.RegisterNode {
		return
	}
	deleted := make(chan []string, 1) // the pod CIDRs that the Node had
	factory := informers.One(cs, "", s.opts.NodeName)
	// Adding a handler fails only on a stopped informer.
	_, _ = factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if err := s.label(ctx, cs, object.(*corev1.Node)); err != nil && ctx.Err() == nil {
				s.opts.Log.Warnf("cannot set Kubelith's labels on Node %s, retrying when this process restarts: %v", s.opts.NodeName, err)
			}
		},
		DeleteFunc: func(object any) {
			var podCIDRs []string
			if node, ok := informers.As[*corev1.Node](object); ok {
				podCIDRs = node.Spec.PodCIDRs
			}
			select {
			case deleted <- podCIDRs:
			default:
			}
		},
	})
	defer informers.Start(ctx, factory)()
	for {
		var podCIDRs []string
		select {
		case <-ctx.Done():
			return
		case podCIDRs = <-deleted:
		}
		// Pods go on running: other CIDRs would change the bridge's addresses and cut them off.
		node := s.initialNode()
		if node.Spec.PodCIDRs = podCIDRs; len(podCIDRs) > 0 {
			node.Spec.PodCIDR = podCIDRs[0]
		}
		for ctx.Err() == nil {
			_, err := cs.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			if err == nil || apierrors.IsAlreadyExists(err) {
				s.opts.Log.Warnf("Node %s was deleted: registered it again", s.opts.NodeName)
				break
			}
			s.opts.Log.Warnf("Node %s was deleted: cannot register it again, retrying in %s: %v", s.opts.NodeName, registerRetry, err)
			reconcile.Sleep(ctx, registerRetry)
		}
	}
}

// label adds our own labels to a Node that was registered by a version of Kubelith without them. Upstream's kubelet
// sets labels when it registers and never again, and the user may change the user's own.
func (s *Server) label(ctx context.Context, cs kubernetes.Interface, node *corev1.Node) error {
	missing := map[string]string{}
	for key, value := range s.upstream.NodeLabels {
		if strings.HasPrefix(key, names.Prefix) && node.Labels[key] != value {
			missing[key] = value
		}
	}
	if len(missing) == 0 {
		return nil
	}
	_, err := nodepatch.Merge(ctx, cs, node.Name, map[string]any{"metadata": map[string]any{"labels": missing}})
	return err
}

// initialNode returns a Node with what upstream's kubelet sets when it registers and never again.
// Source: pkg/kubelet/kubelet_node_status.go, initialNode.
func (s *Server) initialNode() *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: s.opts.NodeName,
		Labels: map[string]string{
			corev1.LabelHostname:      s.opts.NodeName,
			corev1.LabelOSStable:      runtime.GOOS,
			corev1.LabelArchStable:    runtime.GOARCH,
			"beta.kubernetes.io/os":   runtime.GOOS,
			"beta.kubernetes.io/arch": runtime.GOARCH,
		},
	}}
	if s.upstream.EnableControllerAttachDetach {
		n.Annotations = map[string]string{volumeutil.ControllerManagedAttachAnnotation: "true"}
	}
	maps.Copy(n.Labels, s.upstream.NodeLabels)
	n.Spec.Taints = slices.Clone(s.upstream.RegisterWithTaints)
	n.Spec.ProviderID = s.upstream.ProviderID
	return n
}
