// Package heartbeat keeps the Lease of a node from going back in time.
//
// A kubelet shows that it is alive with the time in its Lease, which comes from its own clock. Upstream's node
// lifecycle controller (pkg/controller/nodelifecycle) accepts only a later time than the last one as a renewal. After a
// clock was set back, for example by an hour, it sees no renewal for that hour, logs that every five seconds, and does
// not notice when the node dies. The admission plugin dates such a renewal a microsecond after the previous one: the
// controller measures the age of a renewal with its own clock.
package heartbeat

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/coordination"
)

// Name is the admission plugin's.
const Name = "KubelithHeartbeat"

// Plugin is the admission plugin.
type Plugin struct{ *admission.Handler }

var _ admission.MutationInterface = Plugin{}

// New returns the plugin.
func New() Plugin { return Plugin{admission.NewHandler(admission.Update)} }

// Admit implements admission.MutationInterface.
func (Plugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != coordinationv1.Resource("leases") || a.GetNamespace() != corev1.NamespaceNodeLease {
		return nil
	}
	lease, ok := a.GetObject().(*coordination.Lease)
	old, had := a.GetOldObject().(*coordination.Lease)
	if !ok || !had || lease.Spec.RenewTime == nil || old.Spec.RenewTime == nil || !lease.Spec.RenewTime.Before(old.Spec.RenewTime) {
		return nil
	}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: old.Spec.RenewTime.Add(time.Microsecond)}
	return nil
}
