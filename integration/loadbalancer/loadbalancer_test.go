package loadbalancer

import (
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

// TestReachable: a Service is reachable at the node's address, from outside, from the node and from a pod, and no
// more when it is deleted.
func TestReachable(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := web(t, s, ns, "web")
	balanced(t, s, ns, "web", "web", 80, func(svc *corev1.Service) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "echo", Protocol: corev1.ProtocolUDP, Port: 80, TargetPort: intstr.FromInt(9000)})
	})
	waitAddresses(t, s, ns, "web", s.NodeIP)
	waitEvent(t, s, ns, "web", "LoadBalancerReady", s.NodeIP)
	a := mustAsk(t, outside(), url(s.NodeIP, 80))
	if a.Hostname != pod.Name {
		t.Errorf("answered by %q", a.Hostname)
	}
	if a.From() == s.HostIP {
		t.Errorf("with the policy Cluster the pod saw the client %s: then its answer could take another way back", a.Remote)
	}
	harness.Eventually(t, patience, "an echo over UDP", func() error { return echoes(t.Context(), net.JoinHostPort(s.NodeIP, "80")) })
	mustAsk(t, s.HTTPClient(2*time.Second), url(s.NodeIP, 80))
	if out, errOut, err := s.TryPodExec(t, pod, "main", "/bin/probe", "dial", "--timeout=3s", url(s.NodeIP, 80)); err != nil {
		t.Errorf("from a pod: %v: %s%s", err, out, errOut)
	}
	if err := s.Client(t).CoreV1().Services(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, "the port to be closed", func() error { return refuses(url(s.NodeIP, 80)) })
}

// TestFamilies: a dual-stack Service has the addresses of both families, an IPv6 one that of IPv6.
func TestFamilies(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	ips := nodeIPs(t, s)
	if len(ips) != 2 || ips[0] != s.NodeIP {
		t.Fatalf("the node has the addresses %v", ips)
	}
	web(t, s, ns, "web")
	policy := corev1.IPFamilyPolicyRequireDualStack
	balanced(t, s, ns, "both", "web", 8101, func(svc *corev1.Service) { svc.Spec.IPFamilyPolicy = &policy })
	balanced(t, s, ns, "six", "web", 8102, func(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} })
	waitAddresses(t, s, ns, "both", ips...)
	waitAddresses(t, s, ns, "six", ips[1])
	for _, ip := range ips {
		mustAsk(t, outside(), url(ip, 8101))
	}
	mustAsk(t, outside(), url(ips[1], 8102))
	if err := refuses(url(ips[0], 8102)); err != nil {
		t.Error(err)
	}
}

// TestPolicyLocal: the pod sees the client's address; the Service has the node's address as long as the node has a
// ready pod.
func TestPolicyLocal(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	balanced(t, s, ns, "web", "web", 8103, func(svc *corev1.Service) {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	harness.Consistently(t, 2*time.Second, "without a pod", func() error { return hasAddresses(t, s, ns, "web") })
	web(t, s, ns, "web")
	waitAddresses(t, s, ns, "web", s.NodeIP)
	if a := mustAsk(t, outside(), url(s.NodeIP, 8103)); a.From() != s.HostIP {
		t.Errorf("the pod saw %s, the client is %s", a.Remote, s.HostIP)
	}
	s.Kubectl(t, "-n", ns, "delete", "pod", "web", "--now")
	waitAddresses(t, s, ns, "web")
}

// TestSourceRanges: clients outside the Service's ranges are dropped, at its port and nowhere else.
func TestSourceRanges(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	web(t, s, ns, "web")
	svc := balanced(t, s, ns, "web", "web", 8104, func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{s.HostIP + "/32"} })
	waitAddresses(t, s, ns, "web", s.NodeIP)
	mustAsk(t, outside(), url(s.NodeIP, 8104))
	// The node is not in the range.
	if a, err := harness.Ask(s.HTTPClient(2*time.Second), url(s.NodeIP, 8104)); err == nil {
		t.Errorf("the node, which is not in the range, got an answer from %s", a.Hostname)
	}
	patch(t, s, ns, "web", `{"spec":{"loadBalancerSourceRanges":["192.0.2.0/24"]}}`)
	harness.Eventually(t, patience, "the client to be dropped", func() error { return drops(url(s.NodeIP, 8104)) })
	// Upstream's rule: the ranges are the load balancer's, a node port has none.
	mustAsk(t, outside(), url(s.NodeIP, svc.Spec.Ports[0].NodePort))
	patch(t, s, ns, "web", `{"spec":{"loadBalancerSourceRanges":null}}`)
	mustAsk(t, outside(), url(s.NodeIP, 8104))
}

// TestClass: a Service of another class is left alone, one that names our class is served.
func TestClass(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	web(t, s, ns, "web")
	class := func(name string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = &name }
	}
	balanced(t, s, ns, "theirs", "web", 8105, class("example.org/lb"))
	balanced(t, s, ns, "ours", "web", 8106, class("kubelith.io/servicelb"))
	waitAddresses(t, s, ns, "ours", s.NodeIP)
	mustAsk(t, outside(), url(s.NodeIP, 8106))
	harness.Consistently(t, 2*time.Second, "a Service of another class", func() error { return hasAddresses(t, s, ns, "theirs") })
	if err := refuses(url(s.NodeIP, 8105)); err != nil {
		t.Error(err)
	}
}

// TestConflict: a port belongs to one Service. The other one gets an Event, and the port when it is free.
func TestConflict(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	web(t, s, ns, "one")
	web(t, s, ns, "two")
	balanced(t, s, ns, "one", "one", 8107)
	waitAddresses(t, s, ns, "one", s.NodeIP)
	balanced(t, s, ns, "two", "two", 8107)
	waitEvent(t, s, ns, "two", "PortConflict", "port 8107/TCP is taken by "+ns+"/one on ")
	if err := hasAddresses(t, s, ns, "two"); err != nil {
		t.Error(err)
	}
	if a := mustAsk(t, outside(), url(s.NodeIP, 8107)); a.Hostname != "one" {
		t.Errorf("answered by %q", a.Hostname)
	}
	if err := s.Client(t).CoreV1().Services(ns).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitAddresses(t, s, ns, "two", s.NodeIP)
	harness.Eventually(t, patience, "the other pod to answer", func() error {
		if a, err := harness.Ask(outside(), url(s.NodeIP, 8107)); err != nil || a.Hostname != "two" {
			return fmt.Errorf("answered by %q, %v", a.Hostname, err)
		}
		return nil
	})
	if n := len(events(t, s, ns, "two", "PortConflict")); n != 1 {
		t.Errorf("the conflict has %d Events", n)
	}
}

// TestOwnPorts: no Service gets one of Kubelith's own ports, which would close it to all clients outside.
func TestOwnPorts(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	web(t, s, ns, "web")
	for _, port := range []int32{6443, 10250, 10256, 10053} {
		name := fmt.Sprintf("p%d", port)
		balanced(t, s, ns, name, "web", port)
		waitEvent(t, s, ns, name, "PortConflict", fmt.Sprintf("port %d/TCP is taken by Kubelith itself on ", port))
		if err := hasAddresses(t, s, ns, name); err != nil {
			t.Error(err)
		}
	}
	nodePort := balanced(t, s, ns, "other", "web", 8108).Spec.Ports[0].NodePort
	balanced(t, s, ns, "node-port", "web", nodePort)
	waitEvent(t, s, ns, "node-port", "PortConflict", fmt.Sprintf("port %d/TCP is taken by the node port of %s/other on ", nodePort, ns))
	if _, err := s.Client(t).Discovery().ServerVersion(); err != nil {
		t.Errorf("the API: %v", err)
	}
}
