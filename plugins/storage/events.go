package storage

import (
	"context"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Refused is the reason of Events about plugins that cannot be the driver that they want to be.
const Refused = "StorageDriverRefused"

// Complaints says, in the log and on the Node, why a plugin is no driver.
type Complaints struct {
	recorder record.EventRecorder
	node     corev1.ObjectReference
	log      logrus.FieldLogger
	stop     func()
}

// NewComplaints returns the complaints of that node, until Close.
func NewComplaints(ctx context.Context, cs kubernetes.Interface, node string, log logrus.FieldLogger) *Complaints {
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cs.CoreV1().Events("")})
	return &Complaints{
		recorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelith-storage", Host: node}),
		// The kubelet's Events about its node have its name as UID too.
		node: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
		log:  log,
		stop: events.Shutdown,
	}
}

// Complain says it of one plugin.
func (c *Complaints) Complain(plugin string, err error) {
	c.log.WithField("plugin", plugin).Error(err)
	c.recorder.Eventf(&c.node, corev1.EventTypeWarning, Refused, "plugin %s: %v", plugin, err)
}

// Close ends what sends the Events.
func (c *Complaints) Close() { c.stop() }
