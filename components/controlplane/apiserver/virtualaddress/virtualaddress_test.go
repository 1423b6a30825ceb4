package virtualaddress

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
)

func TestValidate(t *testing.T) {
	service := func(external, status string) *core.Service {
		return &core.Service{
			//lint:ignore SA1019 Services may still have them
			Spec:   core.ServiceSpec{ExternalIPs: []string{"192.0.2.7", external}},
			Status: core.ServiceStatus{LoadBalancer: core.LoadBalancerStatus{Ingress: []core.LoadBalancerIngress{{IP: status}}}},
		}
	}
	for name, tc := range map[string]struct {
		old, now runtime.Object
		vip      string
		refused  bool
	}{
		"other addresses":         {nil, service("192.0.2.8", ""), "192.0.2.9", false},
		"external IP":             {nil, service("192.0.2.9", ""), "192.0.2.9", true},
		"status":                  {service("", ""), service("", "192.0.2.9"), "192.0.2.9", true},
		"IPv6, in another form":   {nil, service("2001:db8:0::9", ""), "2001:db8::9", true},
		"had it before":           {service("192.0.2.9", ""), service("192.0.2.9", ""), "192.0.2.9", false},
		"there is none":           {nil, service("192.0.2.9", ""), "", false},
		"another kind of objects": {nil, &core.Pod{}, "192.0.2.9", false},
	} {
		address, _ := netip.ParseAddr(tc.vip)
		p := New(func() netip.Addr { return address })
		op := admission.Create
		if tc.old != nil {
			op = admission.Update
		}
		a := admission.NewAttributesRecord(tc.now, tc.old, core.Kind("Service").WithVersion("v1"), "default", "s", corev1.SchemeGroupVersion.WithResource("services"), "", op, nil, false, nil)
		if err := p.Validate(t.Context(), a, nil); (err != nil) != tc.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
