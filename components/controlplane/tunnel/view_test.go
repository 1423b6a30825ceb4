package tunnel

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
)

func newNode(name, role, pods string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.RoleLabel: role}}}
	if pods != "" {
		n.Spec.PodCIDRs = strings.Split(pods, ",")
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	return n
}

func hostPod(name, node string, port int32, protocol corev1.Protocol) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: port, Protocol: protocol}}}},
	}}
}

func service(name string, port int32, portName string, ips ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{ClusterIPs: ips, Ports: []corev1.ServicePort{{Name: portName, Port: port, Protocol: corev1.ProtocolTCP}}}}
}

func endpoints(of, portName string, port int32, ready bool, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: of + "-" + strings.ReplaceAll(ips[0], ":", "-"), Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	if strings.Contains(ips[0], ":") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

// viewOf returns the view of a cluster with these objects: pods in 10.42.0.0/16 and fd00:42::/56, Services in
// 10.43.0.0/16 and fd00:43::/112, and the API at 192.0.2.1.
func viewOf(t *testing.T, objects ...runtime.Object) *view {
	t.Helper()
	o := Options{ClusterCIDRs: []string{"10.42.0.0/16", "fd00:42::/56"}, ServiceCIDRs: []string{"10.43.0.0/16", "fd00:43::/112"}}
	o.Addresses = nodeaddr.Parse(slices.Concat(o.ClusterCIDRs, o.ServiceCIDRs), []string{"192.0.2.1"})
	f := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	v, synced := newView(o, f)
	f.Start(t.Context().Done())
	t.Cleanup(f.Shutdown)
	if !cache.WaitFor(t.Context(), "", synced...) {
		t.Fatal("not synced")
	}
	return v
}

// TestOwner: a connection to a node or to its pods goes through that node's tunnel, and to what a node only claims to
// have through none.
func TestOwner(t *testing.T) {
	server := newNode("server", names.RoleServer, "10.42.0.0/24", "192.0.2.1")
	server.Annotations = map[string]string{names.APINamesAnnotation: "192.0.2.1,198.51.100.7"}
	v := viewOf(t, server,
		newNode("a", names.RoleAgent, "10.42.1.0/24,fd00:42:0:1::/64", "192.0.2.2", "2001:db8::2"),
		newNode("b", names.RoleAgent, "10.42.2.0/24", "192.0.2.3"),
		// It claims the addresses of the API, also one that only the server's Node names, of b, of pods and Services,
		// and b's pods.
		newNode("thief", names.RoleAgent, "10.42.2.0/25", "192.0.2.9", "192.0.2.1", "198.51.100.7", "192.0.2.3", "10.42.1.7", "10.43.0.1", "127.0.0.1", "169.254.169.254"),
		newNode("elsewhere", "", "10.42.4.0/24", "192.0.2.5"), // a node without Kubelith
		hostPod("web", "a", 8080, corev1.ProtocolTCP), hostPod("dns", "a", 53, corev1.ProtocolUDP), hostPod("theirs", "thief", 8080, corev1.ProtocolTCP),
	)
	for address, want := range map[string]struct{ kubelet, other string }{
		"192.0.2.2:10250":          {"a", "a"},
		"[::ffff:192.0.2.2]:10250": {"a", "a"},
		"[2001:db8::2]:10250":      {"a", "a"},
		"192.0.2.2:22":             {"", ""},  // no pod has it
		"192.0.2.2:8080":           {"", "a"}, // of a pod in the host's network
		"192.0.2.2:53":             {"", ""},  // UDP
		"10.42.1.7:80":             {"", "a"},
		"10.42.1.7:10250":          {"", "a"}, // a pod's, though the thief has the address
		"[fd00:42:0:1::7]:80":      {"", "a"},
		"10.42.2.200:80":           {"", "b"},
		"10.42.2.7:80":             {"", ""}, // two Nodes have the network
		"192.0.2.3:10250":          {"", ""}, // two Nodes have the address
		"192.0.2.9:10250":          {"thief", "thief"},
		"192.0.2.9:8080":           {"", "thief"},
		"192.0.2.1:10250":          {"", ""}, // a server
		"192.0.2.1:6443":           {"", ""},
		"198.51.100.7:10250":       {"", ""}, // another of the API
		"198.51.100.7:8080":        {"", ""},
		"10.42.0.7:80":             {"", ""}, // the server's pods
		"127.0.0.1:10250":          {"", ""},
		"169.254.169.254:10250":    {"", ""},
		"10.43.0.1:10250":          {"", ""},
		"192.0.2.5:10250":          {"", ""},
		"10.42.4.7:80":             {"", ""},
		"203.0.113.5:443":          {"", ""},
		"node.example:10250":       {"", ""},
		"[fe80::1%eth0]:10250":     {"", ""},
	} {
		if got := v.kubelet(address).node; got != want.kubelet {
			t.Errorf("a kubelet at %s: %q, want %q", address, got, want.kubelet)
		}
		if got := v.find(address, func(string) bool { return true }).node; got != want.other {
			t.Errorf("%s: %q, want %q", address, got, want.other)
		}
	}
}

// TestService: of a Service with an endpoint behind a tunnel, an endpoint is chosen; any other is left to kube-proxy.
func TestService(t *testing.T) {
	v := viewOf(t,
		newNode("a", names.RoleAgent, "10.42.1.0/24,fd00:42:0:1::/64", "192.0.2.2"),
		newNode("b", names.RoleAgent, "10.42.2.0/24", "192.0.2.3"),
		service("both", 443, "https", "10.43.0.2", "fd00:43::2"), endpoints("both", "https", 8443, true, "10.42.1.7", "10.42.2.7", "203.0.113.5"),
		endpoints("both", "https", 8443, false, "10.42.1.8"), endpoints("both", "http", 8080, true, "10.42.1.9"), endpoints("both", "https", 8443, true, "fd00:42:0:1::7"),
		service("near", 443, "", "10.43.0.3"), endpoints("near", "", 8443, true, "10.42.2.7"),
		service("none", 443, "", "10.43.0.4"),
	)
	only := func(name string) func(string) bool { return func(node string) bool { return node == name } }
	for _, c := range []struct {
		address   string
		tunnelled func(string) bool
		want      []target
	}{
		{"10.43.0.2:443", only("a"), []target{{"a", "10.42.1.7:8443"}, {"b", "10.42.2.7:8443"}, {"", "203.0.113.5:8443"}}},
		{"10.43.0.2:443", only(""), []target{{"b", "10.43.0.2:443"}}},
		{"10.43.0.2:80", only("a"), []target{{"", "10.43.0.2:80"}}},
		{"[fd00:43::2]:443", only("a"), []target{{"a", "[fd00:42:0:1::7]:8443"}}},
		{"10.43.0.3:443", only("a"), []target{{"b", "10.43.0.3:443"}}},
		{"10.43.0.3:443", only("b"), []target{{"b", "10.42.2.7:8443"}}},
		{"10.43.0.4:443", only("a"), []target{{"", "10.43.0.4:443"}}},
		{"10.43.0.5:443", only("a"), []target{{"", "10.43.0.5:443"}}},
	} {
		got := map[target]bool{}
		for range 100 {
			got[v.find(c.address, c.tunnelled)] = true
		}
		for to := range got {
			if !slices.Contains(c.want, to) {
				t.Errorf("%s goes to %v, want %v", c.address, to, c.want)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s goes to %v, want %v", c.address, got, c.want)
		}
	}
}

func TestKubeletOf(t *testing.T) {
	unready := newNode("new", names.RoleAgent, "")
	v := viewOf(t, newNode("a", names.RoleAgent, "", "192.0.2.2", "192.0.2.22"), unready)
	if at, err := v.kubeletOf("a"); err != nil || at.String() != "192.0.2.2:10250" {
		t.Errorf("%v, %v", at, err)
	}
	for name, want := range map[string]string{"new": "has not reported its address yet", "none": "is not registered yet"} {
		if at, err := v.kubeletOf(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", name, at, err)
		}
	}
}
