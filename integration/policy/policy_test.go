// Package policy tests network policies on a real cluster, with packets of real pods: docs/network-policy.md.
package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/integration/harness"
)

// settings is the configuration of the shared server.
const settings = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"

// cluster is the server of the tests on one node. They are serial. TestPolicies, the first by the names of
// the files, sees a new node.
var cluster = harness.NewShared(harness.Options{ConfigYAML: settings, Args: []string{"--log-level=info,network-policy=debug"}})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// shared returns the shared server. At the end of the test it deletes all NetworkPolicies, and waits until there is no
// table.
func shared(t *testing.T) *harness.Server {
	t.Helper()
	s := cluster.Get(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience(20*time.Second))
		defer cancel()
		client := s.Client(t).NetworkingV1()
		left, err := client.NetworkPolicies("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range left.Items { // a namespace that is being deleted keeps them until its pods have ended
			if err := client.NetworkPolicies(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
		tables(t, s, false)
	})
	return s
}

// applies is how long a change may take until it is enforced.
const applies = time.Second

// patience is the timeout of denied connections, allowance that of allowed ones.
const (
	patience  = 700 * time.Millisecond
	allowance = 10 * time.Second
)

// server runs echo on port 9000 (named "echo") and serve on 8080.
func server(ns, name string) *corev1.Pod {
	pod := harness.Pod(ns, name, "/bin/probe", "echo")
	pod.Labels = map[string]string{"app": name}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "echo", ContainerPort: 9000}}
	web := harness.Container("web", "/bin/probe", "serve")
	pod.Spec.Containers = append(pod.Spec.Containers, web)
	return pod
}

func policy(t *testing.T, s *harness.Server, ns, name, spec string) {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client(t).NetworkingV1().NetworkPolicies(ns).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func unpolicy(t *testing.T, s *harness.Server, ns, name string) {
	t.Helper()
	if err := s.Client(t).NetworkingV1().NetworkPolicies(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// ask exchanges a line with echo, from a process' network namespace.
func ask(ctx context.Context, pid int, network, address string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := harness.DialFrom(ctx, pid, network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	return exchange(conn, timeout)
}

// connects reports whether a pod or the node gets a TCP connection, to a port that need not answer.
func connects(ctx context.Context, pid int, address string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, harness.Patience(timeout))
	defer cancel()
	conn, err := harness.DialFrom(ctx, pid, "tcp", address)
	if err == nil {
		conn.Close()
	}
	return err
}

func exchange(conn net.Conn, timeout time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 512))
	return err
}

// probe is a connection that is expected to work or not.
type probe struct {
	what    string
	pid     int
	network string
	address string
	works   bool
}

// check waits until the first probe is as expected, for as long as a change may take, and then expects it of all.
func check(t *testing.T, when string, probes ...probe) {
	t.Helper()
	one := func(p probe, allowance time.Duration) error {
		timeout := patience
		if p.works {
			timeout = allowance
		}
		err := ask(t.Context(), p.pid, p.network, p.address, timeout)
		switch {
		case p.works && err != nil:
			return fmt.Errorf("%s: %s (%s %s): %w", when, p.what, p.network, p.address, err)
		case !p.works && err == nil:
			return fmt.Errorf("%s: %s (%s %s) works", when, p.what, p.network, p.address)
		}
		return nil
	}
	for i, p := range probes {
		if i == 0 {
			harness.Eventually(t, applies, when, func() error { return one(p, harness.Patience(patience)) })
			continue
		}
		if err := one(p, allowance); err != nil {
			t.Error(err)
		}
	}
}

func table(t *testing.T, s *harness.Server) string {
	t.Helper()
	return s.TryExec(t, "nft", "list", "table", "inet", "kubelith_policy").Stdout
}

// tables waits until the node has both tables of network policies, or none.
func tables(t *testing.T, s *harness.Server, want bool) {
	t.Helper()
	harness.Eventually(t, 20*time.Second, "the tables", func() error {
		for _, family := range []string{"inet", "bridge"} {
			if there := s.TryExec(t, "nft", "list", "table", family, "kubelith_policy").Code == 0; there != want {
				return fmt.Errorf("there is a table of family %s: %v", family, there)
			}
		}
		return nil
	})
}

// number is that of an environment variable: CI runs a few of what make policy-race runs many of.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// TestFirstPacket: pods whose first instruction connects to what is forbidden, or to what only a policy allows.
func TestFirstPacket(t *testing.T) {
	s := shared(t)
	ns, other := s.Namespace(t), s.Namespace(t)
	target := server(other, "target")
	target.Spec.Containers = append(target.Spec.Containers, harness.Container("forbidden", "/bin/probe", "serve", "--addr=:8081"))
	target = s.Run(t, target)
	policy(t, s, ns, "egress", `
podSelector: {}
policyTypes: [Egress]
egress: [{to: [{namespaceSelector: {}}], ports: [{port: 8080}]}]`)
	url := func(port string) string { return "http://" + net.JoinHostPort(target.Status.PodIP, port) + "/" }
	const each = 10
	for round := range number(t, "POLICY_PODS", 20) / each {
		var pods []*corev1.Pod
		for i := range each {
			// Init containers come first; they are guarded too.
			first := harness.Container("first", harness.Shell("if /bin/probe dial --timeout=700ms "+url("8081")+"; then exit 1; fi")...)
			pod := harness.Pod(ns, fmt.Sprintf("forbidden-%d-%d", round, i), "/bin/probe", "dial", harness.Timeout(time.Second), url("8080"))
			pod.Spec.InitContainers = []corev1.Container{first}
			pods = append(pods, s.Create(t, pod))
		}
		for _, pod := range pods {
			ended := s.WaitPod(t, pod, "to end", harness.PodEnded)
			if ended.Status.Phase != corev1.PodSucceeded {
				t.Errorf("%s: what is forbidden was reached, or what is allowed was not: %v %v", pod.Name, ended.Status.InitContainerStatuses, ended.Status.ContainerStatuses)
			}
		}
	}
}

// TestSources: what a pod sends is judged by who it is, whatever address it puts into a packet.
func TestSources(t *testing.T) {
	s := shared(t)
	ns := s.Namespace(t)
	a, b, c := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b")), s.Run(t, server(ns, "c"))
	inC, address := s.ContainerPID(t, c, "main"), net.JoinHostPort(a.Status.PodIP, "9000")
	inPod := func(pid int, args ...string) string {
		t.Helper()
		out, err := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(pid), "-n"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	// By its link-local address, which no policy can name, pods of a node reach each other until there are policies.
	local := regexp.MustCompile(`inet6 (fe80:\S+)/64`).FindStringSubmatch(inPod(s.ContainerPID(t, a, "main"), "ip", "-6", "addr", "show", "dev", "eth0"))
	index := regexp.MustCompile(`^(\d+):`).FindString(inPod(inC, "ip", "-o", "link", "show", "dev", "eth0"))
	if local == nil {
		t.Fatal("a pod has no link-local address")
	}
	direct := net.JoinHostPort(local[1]+"%"+strings.TrimSuffix(index, ":"), "9000")
	harness.Eventually(t, 10*time.Second, "the link-local address", func() error { return ask(t.Context(), inC, "tcp", direct, allowance) })
	// c gets b's address, too.
	inPod(inC, "ip", "addr", "add", b.Status.PodIP+"/32", "dev", "eth0")
	inPod(inC, "ip", "route", "add", a.Status.PodIP+"/32", "dev", "eth0", "src", b.Status.PodIP)
	received := func() string {
		snmp := inPod(s.ContainerPID(t, a, "main"), "cat", "/proc/net/snmp")
		return strings.Fields(regexp.MustCompile(`(?m)^Udp: \d.*$`).FindString(snmp))[1]
	}
	forge := func() (arrived bool) {
		before := received()
		for range 5 {
			conn, err := harness.DialFrom(t.Context(), inC, "udp", address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "forged\n"); err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}
		time.Sleep(time.Second)
		return received() != before
	}
	harness.Eventually(t, 10*time.Second, "a forged packet to arrive without policies, else the test proves nothing", func() error {
		if !forge() {
			return errors.New("none does")
		}
		return nil
	})
	policy(t, s, ns, "all", `
podSelector: {matchLabels: {app: a}}
ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]`)
	check(t, "by the link-local address", probe{"c to a", inC, "tcp", direct, false}, probe{"b to a", s.ContainerPID(t, b, "main"), "tcp", address, true})
	// Answers go to b: what counts is whether a's program sees the request.
	if forge() {
		t.Error("packets with another pod's address arrive")
	}
}
