package dns

import (
	"context"
	"net"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/nodeaddr"
	"kubelith.io/kubelith/base/reconcile"
)

// node watches our own Node for its addresses.
type node struct {
	name    string
	changed reconcile.Signal
	nodes   corelisters.NodeLister
}

// watch starts the watch. The returned function ends it and waits.
func (n *node) watch(ctx context.Context, client kubernetes.Interface) (stop func()) {
	factory := informers.One(client, "", n.name)
	n.nodes = factory.Core().V1().Nodes().Lister()
	// Adding a handler fails only on a stopped informer.
	_, _ = factory.Core().V1().Nodes().Informer().AddEventHandler(onAddressChange(n.changed))
	return informers.Start(ctx, factory)
}

// ips returns the addresses in the Node object; none while it does not exist or has none.
func (n *node) ips() []net.IP {
	object, err := n.nodes.Get(n.name)
	if err != nil {
		return nil
	}
	return nodeaddr.Internal(object)
}

// onAddressChange signals the relevant changes of Nodes: they change with each heartbeat.
func onAddressChange(changed reconcile.Signal) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed.Send() },
		UpdateFunc: func(old, current any) {
			a, b := old.(*corev1.Node), current.(*corev1.Node)
			if a.UID != b.UID || !nodeaddr.Same(nodeaddr.Internal(a), nodeaddr.Internal(b)) {
				changed.Send()
			}
		},
		DeleteFunc: func(any) { changed.Send() },
	}
}
