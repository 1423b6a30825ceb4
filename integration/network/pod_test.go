package network

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestMasquerade: a listener outside of the node sees the node's address, not the pod's.
func TestMasquerade(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	seen := make(chan string, 10)
	listener, err := net.Listen("tcp", s.HostIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.RemoteAddr
		fmt.Fprint(w, "{}")
	}))
	server.Listener = listener
	server.Start()
	defer server.Close()
	pod := s.Run(t, sleeper(ns, "client"))
	if _, err := ask(t, s, pod, server.URL+"/"); err != nil {
		t.Fatal(err)
	}
	if host, _, _ := net.SplitHostPort(<-seen); host != s.NodeIP {
		t.Errorf("the outside saw %s; the node is %s, the pod %s", host, s.NodeIP, pod.Status.PodIP)
	}
}

func TestHostPort(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := web(ns, "web")
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 18080}}
	s.Run(t, pod)
	url := "http://" + s.NodeIP + ":18080/"
	if a := mustAskOutside(t, url); a.Hostname != "web" || a.From() != s.HostIP {
		t.Errorf("%s answered and saw %s; the client is %s", a.Hostname, a.Remote, s.HostIP)
	}
	if a, err := harness.Ask(s.HTTPClient(harness.Patience(3*time.Second)), url); err != nil || a.Hostname != "web" {
		t.Errorf("from the node itself: %v, %v", a, err)
	}
	s.Kubectl(t, "-n", ns, "delete", "pod", "web", "--now")
	harness.Eventually(t, 20*time.Second, "the host port to be closed", func() error {
		if _, err := harness.Ask(outside(), url); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("got %v, not a refusal", err)
		}
		return nil
	})
}

func TestHostNetwork(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	svc := service(t, s, ns, "web", nil)
	pod := harness.Pod(ns, "web", "/bin/probe", "serve", "--addr=:18081")
	pod.Spec.HostNetwork = true
	pod.Spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet
	pod.Spec.Containers[0].ReadinessProbe = ready(18081)
	pod = s.Run(t, pod)
	if pod.Status.PodIP != s.NodeIP {
		t.Errorf("the pod's address is %s, the node's %s", pod.Status.PodIP, s.NodeIP)
	}
	if harness.NamespaceOf(t, s.ContainerPID(t, pod, "main"), "net") != harness.NamespaceOf(t, s.PID(), "net") {
		t.Error("the pod is not in the host's network namespace")
	}
	if a := mustAskOutside(t, "http://"+s.NodeIP+":18081/"); a.From() != s.HostIP {
		t.Errorf("the pod saw %s, the client is %s", a.Remote, s.HostIP)
	}
	lookup(t, s, pod, "A", "web."+ns, svc.Spec.ClusterIP)
}
