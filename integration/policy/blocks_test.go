package policy

import (
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestManyBlocks: a policy with 10,000 CIDRs is stored and enforced, and a change of it too.
func TestManyBlocks(t *testing.T) {
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	a, b, c := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b")), s.Run(t, server(ns, "c"))
	inA := s.ContainerPID(t, a, "main")
	echo := func(pod *corev1.Pod) string { return net.JoinHostPort(pod.Status.PodIP, "9000") }
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "blocks"}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": "a"}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	var to []networkingv1.NetworkPolicyPeer
	for i := range 9999 {
		to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("100.%d.%d.0/25", 64+i/256, i%256)}})
	}
	to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: b.Status.PodIP + "/32"}})
	p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: to}}
	policies := s.Client(t).NetworkingV1().NetworkPolicies(ns)
	begun := time.Now()
	p, err := policies.Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored := time.Since(begun)
	const long = 20 * time.Second // it is no goal that as many apply within a second
	denied := func(pod *corev1.Pod) {
		t.Helper()
		harness.Eventually(t, long, pod.Name+" to be denied", func() error {
			if ask(t.Context(), inA, "tcp", echo(pod)) == nil {
				return fmt.Errorf("it is reached")
			}
			return nil
		})
	}
	denied(c)
	t.Logf("stored after %s, enforced after %s and a timeout of a connection, which is %s", stored, time.Since(begun), patience)
	check(t, "with 10,000 blocks", probe{"a to b", inA, "tcp", echo(b), true}, probe{"a to c", inA, "tcp", echo(c), false})

	p.Spec.Egress[0].To = to[:9999]
	if _, err := policies.Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	denied(b)
}
