package nodes

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// testLoadBalancer: the Service has the addresses of all nodes, and each routes to the pods of all.
func testLoadBalancer(t *testing.T, c *harness.Cluster, ns string, pods []*corev1.Pod) {
	svc := service(t, c, ns, "load-balancer", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.Selector = map[string]string{"app": "web"}
		svc.Spec.Ports = svc.Spec.Ports[:1]
	})
	want := map[string]bool{}
	for _, n := range c.Nodes() {
		want[n.NodeIP] = true
	}
	harness.Eventually(t, 30*time.Second, "the addresses of all nodes", func() error {
		now, err := c.Server.Client(t).CoreV1().Services(ns).Get(t.Context(), svc.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := now.Status.LoadBalancer.Ingress
		for _, in := range got {
			if !want[in.IP] {
				return fmt.Errorf("%s is no node's address", in.IP)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("the addresses are %v", got)
		}
		return nil
	})
	for i, n := range c.Nodes() {
		dialer(outside).mustReachAll(t, n.NodeName()+" from outside", n.NodeIP, 80, pods)
		within(t, c, pods[(i+1)%len(pods)]).mustReachAll(t, n.NodeName()+" from a pod of another node", n.NodeIP, 80, pods)
	}
}
