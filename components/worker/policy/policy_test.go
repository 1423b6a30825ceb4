package policy

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/components/worker/policy/rules"
)

// TestConnectWhileStarting: a pod that is connected before the policies are known is one of this node's when they are.
func TestConnectWhileStarting(t *testing.T) {
	t.Parallel()
	log, _ := test.NewNullLogger()
	s := New(Options{NodeName: "n", Dir: t.TempDir(), ClusterCIDRs: []string{"10.42.0.0/16"}, Log: log})
	s.compiler = rules.NewCompiler()
	ip := netip.MustParseAddr("10.42.0.2")
	var shut []netip.Addr
	s.shut = func(_ context.Context, ips []netip.Addr) error { shut = ips; return nil }
	err := s.Connect(t.Context(), Pod{Sandbox: "s", Namespace: "ns", Name: "a", UID: "u", IPs: []netip.Addr{ip}})
	if err != nil || !slices.Equal(shut, []netip.Addr{ip}) {
		t.Fatalf("%v is closed, %v", shut, err)
	}

	s.compiler.SetNamespace("ns", nil)
	s.compiler.SetPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "none"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	})
	s.compiler.SetPod(rules.PodOf(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip.String()}}},
	}))
	if class := s.compiler.All().Selected[rules.Ingress][ip]; class == "" {
		t.Error("no policy selects the pod")
	}
}
