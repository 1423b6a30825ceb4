package storage

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// refused is the reason of Events about plugins that cannot be the driver that they want to be.
const refused = "StorageDriverRefused"

// recorder tells about this node.
type recorder struct {
	record.EventRecorder
	node corev1.ObjectReference
}

func newEvents(ctx context.Context, cs kubernetes.Interface, node string) (recorder, func()) {
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cs.CoreV1().Events("")})
	// The kubelet's Events about its node have its name as UID too.
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	return recorder{events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelith-storage", Host: node}), ref}, events.Shutdown
}

// complain says, in the log and on the Node, why a plugin is no driver.
func (h *host) complain(plugin string, err error) {
	h.Log.WithField("plugin", plugin).Error(err)
	h.events.Eventf(&h.events.node, corev1.EventTypeWarning, refused, "plugin %s: %v", plugin, err)
}
