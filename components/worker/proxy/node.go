package proxy

import (
	"context"
	"net"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	utilnode "k8s.io/kubernetes/pkg/util/node"

	shared "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/reconcile"
)

// node watches our own Node object. It stands in for upstream's NodeManager, which exits the process.
type node struct {
	name    string
	factory informers.SharedInformerFactory
	changed reconcile.Signal // the object came or was updated
}

func newNode(client kubernetes.Interface, name string) *node {
	return &node{
		name:    name,
		changed: reconcile.NewSignal(),
		factory: shared.One(client, "", name),
	}
}

// watch starts the watch; the returned function ends it and waits. The end of ctx does not end it: upstream's
// NewNodeTopologyConfig panics on a stopped informer, and a session may just be calling it.
func (n *node) watch(ctx context.Context) (stop func()) {
	// Adding a handler fails only on a stopped informer.
	_, _ = n.informer().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { n.changed.Send() },
		UpdateFunc: func(_, _ any) { n.changed.Send() },
	})
	return shared.Start(context.WithoutCancel(ctx), n.factory)
}

func (n *node) informer() coreinformers.NodeInformer { return n.factory.Core().V1().Nodes() }

// Node returns the object, or nil while it does not exist; upstream's health server calls it.
func (n *node) Node() *corev1.Node {
	object, err := n.informer().Lister().Get(n.name)
	if err != nil {
		return nil
	}
	return object
}

// ips returns the node's addresses, the primary first; none while the object does not exist or has none.
func (n *node) ips() []net.IP {
	object := n.Node()
	if object == nil {
		return nil
	}
	ips, err := utilnode.GetNodeHostIPs(object)
	if err != nil {
		return nil // it has no address yet
	}
	return ips
}
