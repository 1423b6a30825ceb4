package network

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

// conflist is the network of a third party: its own bridge, addresses and CNI programs.
const conflist = `{"cniVersion": "1.0.0", "name": "other", "plugins": [
  {"type": "other-bridge", "bridge": "other0", "isGateway": true, "ipMasq": false,
   "ipam": {"type": "other-local", "ranges": [[{"subnet": "10.99.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`

// TestThirdPartyCNI: a configuration that appears while pods run wins for new pods, and ours comes back when it
// is removed.
func TestThirdPartyCNI(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	first := s.Run(t, web(ns, "first"))
	within(t, first.Status.PodIP, "10.42.0.0/16")
	remove := addNode(t, s)
	waitDevices(t, s, "flannel.1")

	for from, to := range map[string]string{"bridge": "other-bridge", "host-local": "other-local"} {
		program, err := os.ReadFile(filepath.Join("../../.cache/payload", runtime.GOARCH, from))
		if err != nil {
			t.Fatalf("%v: make cni-plugins builds it", err)
		}
		write(t, s, "/opt/cni/bin/"+to, string(program))
		if err := os.Chmod(s.Path("/opt/cni/bin/"+to), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const file = "/etc/cni/net.d/10-other.conflist"
	write(t, s, file, conflist)
	n := 0
	newIP := func() string {
		n++
		return s.Run(t, sleeper(ns, fmt.Sprintf("new-%d", n))).Status.PodIP
	}
	harness.Eventually(t, 30*time.Second, "the other network to be used", func() error { return inside(newIP(), "10.99.0.0/24") })
	waitDevices(t, s)
	remove()
	if err := nodeIsReady(node(t, s)); err != nil {
		t.Error(err)
	}
	if a := mustAskInNode(t, s, "http://"+first.Status.PodIP+":8080/"); a.Hostname != "first" {
		t.Errorf("the pod of the first network: %v", a)
	}
	if err := os.Remove(s.Path(file)); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "our network to be used again", func() error { return inside(newIP(), "10.42.0.0/16") })
	addNode(t, s)
	waitDevices(t, s, "flannel.1")
}

func mustAskInNode(t *testing.T, s *harness.Server, url string) (a answer) {
	t.Helper()
	harness.Eventually(t, 15*time.Second, url+" from the node", func() (err error) {
		a, err = harness.Ask(s.HTTPClient(3*time.Second), url)
		return err
	})
	return a
}

func nodeIsReady(n *corev1.Node) error {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not Ready", n.Name)
}

func inside(ip, cidr string) error {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return err
	}
	if !netip.MustParsePrefix(cidr).Contains(addr) {
		return fmt.Errorf("%s is not in %s", ip, cidr)
	}
	return nil
}

func within(t *testing.T, ip, cidr string) {
	t.Helper()
	if err := inside(ip, cidr); err != nil {
		t.Error(err)
	}
}

// TestNoop: without a pod network the node is Ready and pods on the host's network run; others wait.
func TestNoop(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Args: []string{"--network=noop"}})
	ns := s.Namespace(t)
	other := s.Create(t, sleeper(ns, "other"))
	pod := harness.Pod(ns, "host", "/bin/probe", "serve", "--addr=:18082")
	pod.Spec.HostNetwork = true
	pod.Spec.Containers[0].ReadinessProbe = ready(18082)
	s.Run(t, pod)
	mustAskOutside(t, "http://"+s.NodeIP+":18082/")
	other, err := s.Client(t).CoreV1().Pods(ns).Get(t.Context(), other.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if harness.PodReady(other) == nil {
		t.Error("a pod with its own network is Ready without a network")
	}
	if res := s.TryExec(t, "ip", "link", "show", "cni0"); res.Code == 0 {
		t.Errorf("there is a bridge:\n%s", res.Stdout)
	}
	if err := hasDevices(t, s); err != nil {
		t.Error(err)
	}
}

// TestNodeObject: neither the deletion of the Node object nor another node address, with the old one gone, ends the
// process.
func TestNodeObject(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	pod := web(ns, "web")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	running := s.Run(t, pod)
	svc := service(t, s, ns, "web", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort })
	port := svc.Spec.Ports[0].NodePort
	mustAskOutside(t, fmt.Sprintf("http://%s:%d/", s.NodeIP, port))

	t.Run("deleted", func(t *testing.T) {
		old := node(t, s)
		s.Kubectl(t, "delete", "node", old.Name)
		harness.Eventually(t, 60*time.Second, "the node to register again and be Ready", func() error {
			select {
			case <-s.Exited():
				return harness.Permanent(errors.New("the server ended"))
			default:
			}
			now, err := s.Client(t).CoreV1().Nodes().Get(t.Context(), old.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if now.UID == old.UID {
				return errors.New("it is still the old object")
			}
			return nodeIsReady(now)
		})
		// The garbage collector may have removed the pods of the old node; new ones must run.
		again := web(ns, "again")
		again.Labels = map[string]string{"app": "web"}
		s.Run(t, again)
		mustAskInNode(t, s, "http://"+running.Status.PodIP+":8080/")
		mustAskOutside(t, fmt.Sprintf("http://%s:%d/", s.NodeIP, port))
	})

	t.Run("other address", func(t *testing.T) {
		old, other := s.NodeIP, strings.TrimSuffix(s.NodeIP, ".2")+".3"
		s.Stop(t)
		// The kernel takes the default route away with the address.
		s.Exec(t, "ip", "addr", "del", old+"/24", "dev", "eth0")
		s.Exec(t, "ip", "addr", "add", other+"/24", "dev", "eth0")
		s.Exec(t, "ip", "route", "replace", "default", "via", s.HostIP)
		write(t, s, "/etc/kubelith/config.yaml", "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nnodeIP: ["+other+"]\n")
		s.NodeIP = other // where the test finds the API now
		s.Launch(t)
		s.WaitReady(t)
		harness.Eventually(t, 30*time.Second, "the new address in the Node", func() error {
			for _, a := range node(t, s).Status.Addresses {
				if a.Type == corev1.NodeInternalIP && a.Address == other {
					return nil
				}
			}
			return fmt.Errorf("addresses %v", node(t, s).Status.Addresses)
		})
		mustAskOutside(t, fmt.Sprintf("http://%s:%d/", other, port))
		// What a stop did not take out of default/kubernetes goes with its lease of 15 s, at the next look, every 10 s.
		harness.Eventually(t, 60*time.Second, "the rules to forget the old address", func() error {
			if rules := s.Exec(t, "nft", "list", "table", "ip", "kube-proxy"); strings.Contains(rules, old) {
				return fmt.Errorf("%s is in\n%s", old, rules)
			}
			return nil
		})
		// The API's certificate has the new address (the client checks it), and exec goes to the kubelet there.
		harness.Eventually(t, 15*time.Second, "exec through the new address", func() error {
			res := s.TryKubectl(t, "--server=https://"+other+":6443", "-n", ns, "exec", "again", "--", "/bin/sh", "-c", "echo reached")
			if res.Stdout != "reached\n" {
				return errors.New(res.Stderr)
			}
			return nil
		})
		m := s.Run(t, sleeper(ns, "resolver"))
		lookup(t, s, m, "A", "web", svc.Spec.ClusterIP)
	})
}

// TestDualStack: pods, Services, DNS, NodePorts and masquerading in both families.
func TestDualStack(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{IPv6: true, Args: []string{"--cluster-cidr=10.42.0.0/16,fd42::/56", "--service-cidr=10.43.0.0/16,fd43::/112"}})
	ns := s.Namespace(t)
	host6, node6 := addresses6(s)
	var internal []string
	for _, a := range node(t, s).Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			internal = append(internal, a.Address)
		}
	}
	if !slices.Equal(internal, []string{s.NodeIP, node6}) {
		t.Errorf("the node has the addresses %v", internal)
	}
	pods := runAll(t, s, sleeper(ns, "client"), web(ns, "web"))
	client, server := pods[0], pods[1]
	remove := addNode(t, s)
	waitDevices(t, s, "flannel-v6.1", "flannel.1")
	remove()
	if got := mtu(t, s, client); got != "1430" {
		t.Errorf("the pods' MTU is %s", got)
	}
	if len(server.Status.PodIPs) != 2 {
		t.Fatalf("the pod has the addresses %v", server.Status.PodIPs)
	}
	within(t, server.Status.PodIPs[0].IP, "10.42.0.0/16")
	within(t, server.Status.PodIPs[1].IP, "fd42::/56")
	if a := mustAsk(t, s, client, "http://["+server.Status.PodIPs[1].IP+"]:8080/"); a.From() != client.Status.PodIPs[1].IP {
		t.Errorf("pod to pod: the server saw %s", a.Remote)
	}

	policy := corev1.IPFamilyPolicyRequireDualStack
	svc := service(t, s, ns, "web", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.IPFamilyPolicy = corev1.ServiceTypeNodePort, &policy
		svc.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt(8080)}}
	})
	within(t, svc.Spec.ClusterIPs[1], "fd43::/112")
	for _, ip := range svc.Spec.ClusterIPs {
		mustAsk(t, s, client, "http://"+net.JoinHostPort(ip, "80")+"/")
	}
	lookup(t, s, client, "A", "web", svc.Spec.ClusterIPs[0])
	lookup(t, s, client, "AAAA", "web", svc.Spec.ClusterIPs[1])
	lookup(t, s, client, "PTR", svc.Spec.ClusterIPs[1], "web."+ns+".svc.cluster.local.")
	for _, ip := range []string{s.NodeIP, node6} {
		mustAskOutside(t, "http://"+net.JoinHostPort(ip, fmt.Sprint(svc.Spec.Ports[0].NodePort))+"/")
	}

	seen := make(chan string, 10)
	listener, err := net.Listen("tcp", "["+host6+"]:0")
	if err != nil {
		t.Fatal(err)
	}
	listening := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.RemoteAddr
		fmt.Fprint(w, "{}")
	}))
	listening.Listener = listener
	listening.Start()
	defer listening.Close()
	if _, err := ask(t, s, client, listening.URL+"/"); err != nil {
		t.Fatal(err)
	}
	if host, _, _ := net.SplitHostPort(<-seen); host != node6 {
		t.Errorf("the outside saw %s; the node is %s", host, node6)
	}
}

// addresses6 are the IPv6 addresses of the veth pair: the harness numbers it like the IPv4 one.
func addresses6(s *harness.Server) (host, node string) {
	var n int
	fmt.Sscanf(s.NodeIP, "10.123.%d.2", &n)
	prefix := netip.MustParseAddr(fmt.Sprintf("fd00:123:%x::1", n))
	return prefix.String(), prefix.Next().String()
}
