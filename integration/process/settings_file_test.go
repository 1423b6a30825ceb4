package process

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

const settings = `apiVersion: kubelith.io/v1alpha1
kind: ServerConfig
clusterCIDR: ["fd42::/56", "10.42.0.0/16"]
serviceCIDR: ["fd43::/112", "10.43.0.0/16"]
tlsSAN: [api.example.org, 192.0.2.7, "2001:db8::7"]
nodeName: box
nodeLabels: [example.org/shelf=top]
nodeTaints: ["example.org/only=tests:NoSchedule"]
`

// TestSettingsFile: a file with settings of several kinds has its effect on a real cluster, which is IPv6 first and
// dual stack: the apiserver's certificate, the Node, Services and pods.
func TestSettingsFile(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{ConfigYAML: settings, IPv6: true})
	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	node := nodes.Items[0]
	if node.Name != "box" || node.Labels["example.org/shelf"] != "top" {
		t.Errorf("the node is %s with the labels %v", node.Name, node.Labels)
	}
	taint := corev1.Taint{Key: "example.org/only", Value: "tests", Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(other corev1.Taint) bool { return other == taint }) {
		t.Errorf("the node has the taints %v", node.Spec.Taints)
	}
	var addresses []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			addresses = append(addresses, a.Address)
		}
	}
	if len(addresses) != 2 || addresses[1] != s.NodeIP {
		t.Fatalf("the node has the addresses %v, not an IPv6 one and %s", addresses, s.NodeIP)
	}

	names := []string{"api.example.org", "192.0.2.7", "2001:db8::7", "10.43.0.1", "fd43::1", "kubernetes.default.svc.cluster.local", "localhost"}
	certified(t, s, addresses, append(names, addresses...))

	svc := s.Kubectl(t, "get", "service", "kubernetes", "-o=jsonpath={.spec.clusterIP}")
	if svc != "fd43::1" {
		t.Errorf("the Service of the API has the address %s", svc)
	}
	// A pod that does not tolerate the taint waits, one that does runs and reaches the API by IPv6.
	ns := s.Namespace(t)
	strange := s.Create(t, harness.Pod(ns, "strange", "/bin/probe", "sleep"))
	pod := harness.Pod(ns, "tolerant", "/bin/probe", "sleep")
	pod.Spec.Tolerations = []corev1.Toleration{{Key: taint.Key, Operator: corev1.TolerationOpExists}}
	pod.Spec.NodeSelector = map[string]string{"example.org/shelf": "top"}
	pod = s.Run(t, pod)
	if ips := pod.Status.PodIPs; len(ips) != 2 || !strings.HasPrefix(ips[0].IP, "fd42:") || !strings.HasPrefix(ips[1].IP, "10.42.") {
		t.Errorf("the pod has the addresses %v", ips)
	}
	if out := s.PodExec(t, pod, "main", "/bin/probe", "dial", "--token", "https://[fd43::1]/version"); !strings.Contains(out, "gitVersion") {
		t.Errorf("the API answers a pod %s", out)
	}
	strange, err = s.Client(t).CoreV1().Pods(ns).Get(t.Context(), strange.Name, metav1.GetOptions{})
	if err != nil || strange.Spec.NodeName != "" {
		t.Errorf("a pod without the toleration is on node %q, %v", strange.Spec.NodeName, err)
	}
}

// certified connects to the API at each address and verifies the served certificate for all names.
func certified(t *testing.T, s *harness.Server, addresses, names []string) {
	t.Helper()
	pool := x509.NewCertPool()
	ca, err := os.ReadFile(s.Path(harness.DataDir + "/server/tls/cluster-ca.crt"))
	if err != nil || !pool.AppendCertsFromPEM(ca) {
		t.Fatalf("the cluster's CA: %v", err)
	}
	for _, address := range addresses {
		raw, err := s.DialContext(t.Context(), "tcp", net.JoinHostPort(address, "6443"))
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		conn := tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: "api.example.org"})
		if err := conn.HandshakeContext(t.Context()); err != nil {
			t.Fatalf("the API at %s: %v", address, err)
		}
		for _, name := range names {
			if err := conn.ConnectionState().PeerCertificates[0].VerifyHostname(name); err != nil {
				t.Errorf("the API at %s: %v", address, err)
			}
		}
	}
}
