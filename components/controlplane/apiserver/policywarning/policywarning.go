// Package policywarning warns a client that writes a network policy while some nodes do not enforce it.
//
// Each node reports in a condition whether it does (names.PolicyCondition).
package policywarning

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"

	"kubelith.io/kubelith/base/names"
)

// Name is the admission plugin's.
const Name = "KubelithNetworkPolicyWarning"

// Plugin is the admission plugin.
type Plugin struct {
	*admission.Handler
	nodes corelisters.NodeLister
}

var (
	_ admission.ValidationInterface                = (*Plugin)(nil)
	_ initializer.WantsExternalKubeInformerFactory = (*Plugin)(nil)
)

// New returns the plugin; the apiserver gives it its informers.
func New() *Plugin { return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update)} }

// SetExternalKubeInformerFactory implements initializer.WantsExternalKubeInformerFactory.
func (p *Plugin) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	p.nodes = f.Core().V1().Nodes().Lister() // NodeRestriction has it too
}

// ValidateInitialization implements admission.InitializationValidator.
func (p *Plugin) ValidateInitialization() error {
	if p.nodes == nil {
		return errors.New(Name + " has no informers")
	}
	return nil
}

// Validate implements admission.ValidationInterface. It refuses nothing.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	switch a.GetResource().GroupResource() {
	case networkingv1.Resource("networkpolicies"), schema.GroupResource{Group: "policy.networking.k8s.io", Resource: "clusternetworkpolicies"}:
	default:
		return nil
	}
	if a.GetSubresource() != "" {
		return nil
	}
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil // a warning is not worth an error
	}
	if text := Text(nodes); text != "" {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// shown is how many nodes a warning names: kubectl prints it in one line.
const shown = 3

// Text returns the warning: which nodes do not enforce policies, and why; empty if all do.
func Text(nodes []*corev1.Node) string {
	var open []string
	for _, n := range nodes {
		for _, c := range n.Status.Conditions {
			if c.Type == names.PolicyCondition && c.Status == corev1.ConditionFalse {
				open = append(open, fmt.Sprintf("%s (%s)", n.Name, c.Message))
			}
		}
	}
	if len(open) == 0 {
		return ""
	}
	slices.Sort(open)
	rest := ""
	if len(open) > shown {
		rest = fmt.Sprintf(" and %d more (condition %s of the Nodes)", len(open)-shown, names.PolicyCondition)
		open = open[:shown]
	}
	return "network policies are not enforced for pods on " + strings.Join(open, ", ") + rest
}
