// Package restriction keeps an agent to its own node. It does for Kubelith's additions what NodeRestriction does for
// upstream's kubelet: an admission plugin (Plugin) and an authorizer (Impersonation) inside the apiserver, which cannot
// be deleted through the API and exist before the first request.
//
// An agent has two identities: its node's, and that of the storage controllers on it. For the first, the labels and
// addresses of its own Node are checked (node.go); for the second, everything it may write (volume.go, claim.go,
// capacity.go). RBAC decides what either may do at all (components/controlplane/apiserver/bootstrap_*.go). The reasons
// are in docs/adr/024.
package restriction

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

// Name is the admission plugin's.
const Name = "KubelithRestriction"

// Plugin is the admission plugin. It reads the objects that a decision depends on from the API, not from a cache: an
// agent often reacts to an object that was written a moment ago.
type Plugin struct {
	*admission.Handler
	client kubernetes.Interface
}

var (
	_ admission.ValidationInterface          = (*Plugin)(nil)
	_ initializer.WantsExternalKubeClientSet = (*Plugin)(nil)
)

// New returns the plugin; the apiserver gives it a client.
func New() *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete)}
}

// SetExternalKubeClientSet implements initializer.WantsExternalKubeClientSet.
func (p *Plugin) SetExternalKubeClientSet(cs kubernetes.Interface) { p.client = cs }

// ValidateInitialization implements admission.InitializationValidator.
func (p *Plugin) ValidateInitialization() error {
	if p.client == nil {
		return fmt.Errorf("%s has no client", Name)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	review := p.review(ctx, a)
	if review == nil {
		return nil
	}
	why, err := review(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("%s: %w", Name, err))
	}
	if why != "" {
		return admission.NewForbidden(a, fmt.Errorf("%s", why))
	}
	return nil
}

// review returns the function that checks the request and returns the reason for a refusal, or nothing. It is nil for
// requests that do not come from agents, and for resources that RBAC covers fully.
func (p *Plugin) review(ctx context.Context, a admission.Attributes) func(context.Context) (string, error) {
	resource := a.GetResource().GroupResource()
	if name, ok := nodeOf(a.GetUserInfo()); ok {
		// The kubelet of a server is part of this process.
		if resource == corev1.Resource("nodes") && !client.IsInProcess(ctx) {
			return func(ctx context.Context) (string, error) { return p.node(ctx, name, a) }
		}
		return nil
	}
	node, ok := strings.CutPrefix(a.GetUserInfo().GetName(), client.StorageNodePrefix)
	if !ok {
		return nil
	}
	switch resource {
	case corev1.Resource("persistentvolumes"):
		return func(ctx context.Context) (string, error) { return p.volume(ctx, node, a) }
	case corev1.Resource("persistentvolumeclaims"):
		return func(ctx context.Context) (string, error) { return p.claim(ctx, node, a) }
	case storagev1.Resource("csistoragecapacities"):
		return func(ctx context.Context) (string, error) { return p.capacity(ctx, node, a) }
	}
	return nil
}

// nodeOf returns the node that a user is.
func nodeOf(u user.Info) (string, bool) {
	name, ok := strings.CutPrefix(u.GetName(), names.NodeUserPrefix)
	return name, ok && slices.Contains(u.GetGroups(), user.NodesGroup)
}

// topologyKey returns the key by whose value the volumes of a driver name their node; without one they name none.
func (p *Plugin) topologyKey(ctx context.Context, driver string) (string, error) {
	// From the apiserver's cache: the annotation is there long before a volume is.
	d, err := p.client.StorageV1().CSIDrivers().Get(ctx, driver, metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the CSIDriver %s: %w", driver, err)
	}
	return d.Annotations[names.NodeLocalAnnotation], nil
}
