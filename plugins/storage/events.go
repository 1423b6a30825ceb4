package storage

import (
	"context"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"kubelith.io/kubelith/base/events"
)

// Refused is the reason of Events about plugins that cannot be the driver that they want to be.
const Refused = "StorageDriverRefused"

// Complaints reports, in the log and on the Node, why a plugin is not a driver.
type Complaints struct {
	recorder record.EventRecorder
	node     *corev1.ObjectReference
	log      logrus.FieldLogger
	stop     func()
}

// NewComplaints returns the complaints of that node, until Close.
func NewComplaints(ctx context.Context, cs kubernetes.Interface, node string, log logrus.FieldLogger) *Complaints {
	recorder, stop := events.NewRecorder(ctx, cs, corev1.EventSource{Component: "kubelith-storage", Host: node})
	return &Complaints{recorder: recorder, node: events.Node(node), log: log, stop: stop}
}

// Complain reports it for one plugin.
func (c *Complaints) Complain(plugin string, err error) {
	c.log.WithField("plugin", plugin).Error(err)
	c.recorder.Eventf(c.node, corev1.EventTypeWarning, Refused, "plugin %s: %v", plugin, err)
}

// Close ends what sends the Events.
func (c *Complaints) Close() { c.stop() }
