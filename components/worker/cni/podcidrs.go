package cni

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// watchPodCIDRs sends the pod CIDRs of the Node when they are known and on each change (a deleted Node that registers
// again may get others), until ctx is cancelled; then it closes done.
func watchPodCIDRs(ctx context.Context, cfg *rest.Config, nodeName string, out chan<- []string) (done <-chan struct{}, err error) {
	core, err := typedcorev1.NewForConfig(rest.CopyConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("client to watch the Node: %w", err)
	}
	var last []string
	seen := func(obj any) {
		node, ok := obj.(*corev1.Node)
		if !ok || len(node.Spec.PodCIDRs) == 0 || slices.Equal(node.Spec.PodCIDRs, last) {
			return
		}
		last = slices.Clone(node.Spec.PodCIDRs)
		select {
		case out <- last:
		case <-ctx.Done():
		}
	}
	// By name: the node's identity may watch no other Node.
	lw := cache.NewListWatchFromClient(core.RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", nodeName))
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw,
		ObjectType:    &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    seen,
			UpdateFunc: func(_, obj any) { seen(obj) },
		},
	})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		defer utilruntime.HandleCrash()
		informer.RunWithContext(ctx)
	}()
	return finished, nil
}
