package dns

import (
	"context"
	"net"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// node watches our own Node for its addresses.
type node struct {
	name    string
	changed signal
	nodes   corelisters.NodeLister
}

// watch starts the watch. The returned function ends it and waits.
func (n *node) watch(ctx context.Context, client kubernetes.Interface) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector("metadata.name", n.name).String()
	}))
	n.nodes = factory.Core().V1().Nodes().Lister()
	// Adding a handler fails only on an informer that was stopped before.
	_, _ = factory.Core().V1().Nodes().Informer().AddEventHandler(onAddressChange(n.changed))
	factory.Start(ctx.Done())
	return func() {
		cancel()
		factory.Shutdown()
	}
}

// ips are the addresses in the Node object; none while it does not exist or has none.
func (n *node) ips() []net.IP {
	object, err := n.nodes.Get(n.name)
	if err != nil {
		return nil
	}
	return internalIPs(object)
}

// signal is one pending signal at most: something may differ from what is wanted.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// onAddressChange signals what concerns us of Nodes: they change with each heartbeat.
func onAddressChange(changed signal) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed.send() },
		UpdateFunc: func(old, current any) {
			a, b := old.(*corev1.Node), current.(*corev1.Node)
			if a.UID != b.UID || a.Labels[roleLabel] != b.Labels[roleLabel] || !sameIPs(internalIPs(a), internalIPs(b)) {
				changed.send()
			}
		},
		DeleteFunc: func(any) { changed.send() },
	}
}

// internalIPs are the addresses of a node at which others can reach it. A node writes its status itself, and with one
// that is no global unicast address the API refuses its EndpointSlice.
func internalIPs(node *corev1.Node) []net.IP {
	var ips []net.IP
	for _, a := range node.Status.Addresses {
		if ip := net.ParseIP(a.Address); a.Type == corev1.NodeInternalIP && ip.IsGlobalUnicast() {
			ips = append(ips, ip)
		}
	}
	return ips
}
