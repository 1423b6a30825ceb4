// Package virtualaddress keeps the virtual address of the API from Services: kube-proxy on every node would send what
// clients send to the API to the pods of a Service that has the address as an external IP or in its status.
package virtualaddress

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
)

// Name is the admission plugin's.
const Name = "KubelithVirtualAddress"

// Plugin is the admission plugin.
type Plugin struct {
	*admission.Handler
	address func() netip.Addr
}

var _ admission.ValidationInterface = Plugin{}

// New returns the plugin. address returns the zero Addr while there is none.
func New(address func() netip.Addr) Plugin {
	return Plugin{admission.NewHandler(admission.Create, admission.Update), address}
}

// Validate implements admission.ValidationInterface. A Service that has had the address may still be changed.
func (p Plugin) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("services") {
		return nil
	}
	vip := p.address()
	now, ok := a.GetObject().(*core.Service)
	if !ok || !vip.IsValid() || !has(now, vip) {
		return nil
	}
	if old, ok := a.GetOldObject().(*core.Service); ok && has(old, vip) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("%s is the virtual address of the API (--vip): use another address", vip))
}

func has(s *core.Service, vip netip.Addr) bool {
	//lint:ignore SA1019 Services may still have them
	addresses := append([]string{s.Spec.LoadBalancerIP}, s.Spec.ExternalIPs...)
	for _, i := range s.Status.LoadBalancer.Ingress {
		addresses = append(addresses, i.IP)
	}
	for _, text := range addresses {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Unmap() == vip {
			return true
		}
	}
	return false
}
