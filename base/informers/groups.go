package informers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apiserverinternal"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/extensions"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/lifecycle"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
)

// The API groups of a View: each as in client-go's own factory, with the view in place of the factory.

// Admissionregistration has the informers of admissionregistration.k8s.io.
func (v *View) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(v, metav1.NamespaceAll, nil)
}

// Internal has the informers of internal.apiserver.k8s.io.
func (v *View) Internal() apiserverinternal.Interface {
	return apiserverinternal.New(v, metav1.NamespaceAll, nil)
}

// Apps has the informers of apps.
func (v *View) Apps() apps.Interface {
	return apps.New(v, metav1.NamespaceAll, nil)
}

// Autoscaling has the informers of autoscaling.
func (v *View) Autoscaling() autoscaling.Interface {
	return autoscaling.New(v, metav1.NamespaceAll, nil)
}

// Batch has the informers of batch.
func (v *View) Batch() batch.Interface {
	return batch.New(v, metav1.NamespaceAll, nil)
}

// Certificates has the informers of certificates.k8s.io.
func (v *View) Certificates() certificates.Interface {
	return certificates.New(v, metav1.NamespaceAll, nil)
}

// Coordination has the informers of coordination.k8s.io.
func (v *View) Coordination() coordination.Interface {
	return coordination.New(v, metav1.NamespaceAll, nil)
}

// Core has the informers of the core group, which has no name.
func (v *View) Core() core.Interface {
	return core.New(v, metav1.NamespaceAll, nil)
}

// Discovery has the informers of discovery.k8s.io.
func (v *View) Discovery() discovery.Interface {
	return discovery.New(v, metav1.NamespaceAll, nil)
}

// Events has the informers of events.k8s.io.
func (v *View) Events() events.Interface {
	return events.New(v, metav1.NamespaceAll, nil)
}

// Extensions has the informers of extensions, which no longer serves anything.
func (v *View) Extensions() extensions.Interface {
	return extensions.New(v, metav1.NamespaceAll, nil)
}

// Flowcontrol has the informers of flowcontrol.apiserver.k8s.io.
func (v *View) Flowcontrol() flowcontrol.Interface {
	return flowcontrol.New(v, metav1.NamespaceAll, nil)
}

// Lifecycle has the informers of lifecycle.k8s.io.
func (v *View) Lifecycle() lifecycle.Interface {
	return lifecycle.New(v, metav1.NamespaceAll, nil)
}

// Networking has the informers of networking.k8s.io.
func (v *View) Networking() networking.Interface {
	return networking.New(v, metav1.NamespaceAll, nil)
}

// Node has the informers of node.k8s.io.
func (v *View) Node() node.Interface {
	return node.New(v, metav1.NamespaceAll, nil)
}

// Policy has the informers of policy.
func (v *View) Policy() policy.Interface {
	return policy.New(v, metav1.NamespaceAll, nil)
}

// Rbac has the informers of rbac.authorization.k8s.io.
func (v *View) Rbac() rbac.Interface {
	return rbac.New(v, metav1.NamespaceAll, nil)
}

// Resource has the informers of resource.k8s.io.
func (v *View) Resource() resource.Interface {
	return resource.New(v, metav1.NamespaceAll, nil)
}

// Scheduling has the informers of scheduling.k8s.io.
func (v *View) Scheduling() scheduling.Interface {
	return scheduling.New(v, metav1.NamespaceAll, nil)
}

// Storage has the informers of storage.k8s.io.
func (v *View) Storage() storage.Interface {
	return storage.New(v, metav1.NamespaceAll, nil)
}

// Storagemigration has the informers of storagemigration.k8s.io.
func (v *View) Storagemigration() storagemigration.Interface {
	return storagemigration.New(v, metav1.NamespaceAll, nil)
}
