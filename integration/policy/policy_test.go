// Package policy tests network policies on a real cluster, with packets of real pods: docs/network-policy.md.
package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

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

// TestPolicies goes through the life of policies on one node.
func TestPolicies(t *testing.T) {
	s := harness.Start(t, harness.Options{Args: []string{"--log-level=info,network-policy=debug"}})
	if rules := table(t, s); rules != "" {
		t.Errorf("without policies there is a table:\n%s", rules)
	}
	ns, other := s.Namespace(t), s.Namespace(t)
	a, b := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b"))
	c := s.Run(t, server(other, "c"))
	pid := func(pod *corev1.Pod) int { return s.ContainerPID(t, pod, "main") }
	echo := func(pod *corev1.Pod) string { return net.JoinHostPort(pod.Status.PodIP, "9000") }
	inA, inB, inC, node := pid(a), pid(b), pid(c), s.PID()
	check(t, "without policies", probe{"c to a", inC, "tcp", echo(a), true})

	open, err := harness.DialFrom(t.Context(), inC, "tcp", echo(a))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := exchange(open, allowance); err != nil {
		t.Fatal(err)
	}
	kept, err := harness.DialFrom(t.Context(), inB, "tcp", echo(a))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()

	policy(t, s, ns, "deny", "podSelector: {}\npolicyTypes: [Ingress]")
	check(t, "with ingress denied",
		probe{"c to a", inC, "tcp", echo(a), false}, probe{"c to a", inC, "udp", echo(a), false}, probe{"b to a", inB, "tcp", echo(a), false},
		probe{"a to c", inA, "tcp", echo(c), true}, probe{"the node to a", node, "tcp", echo(a), true}, probe{"the node to a", node, "udp", echo(a), true},
		probe{"a to itself", inA, "tcp", echo(a), true})
	if err := exchange(open, patience); err == nil {
		t.Error("a connection that the policy forbids goes on")
	}
	policy(t, s, ns, "allow", `
podSelector: {matchLabels: {app: a}}
ingress: [{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: echo}]}]`)
	check(t, "with b allowed", probe{"b to a", inB, "tcp", echo(a), true}, probe{"b to a", inB, "udp", echo(a), false},
		probe{"b to a's other port", inB, "tcp", net.JoinHostPort(a.Status.PodIP, "8080"), false}, probe{"c to a", inC, "tcp", echo(a), false},
		probe{"a to b", inA, "tcp", echo(b), false})
	if err := exchange(kept, allowance); err != nil {
		t.Errorf("a connection that the policies allow does not: %v", err)
	}
	s.Kubectl(t, "-n", other, "label", "pod", "c", "app=b", "--overwrite")
	check(t, "with the label, but in another namespace", probe{"b to a", inB, "tcp", echo(a), true}, probe{"c to a", inC, "tcp", echo(a), false})
	s.Kubectl(t, "-n", ns, "label", "pod", "b", "app=z", "--overwrite")
	check(t, "without the label", probe{"b to a", inB, "tcp", echo(a), false})
	unpolicy(t, s, ns, "allow")
	unpolicy(t, s, ns, "deny")
	check(t, "without policies again", probe{"c to a", inC, "tcp", echo(a), true}, probe{"c to a", inC, "udp", echo(a), true})
	harness.Eventually(t, applies, "no table", func() error {
		if rules := table(t, s); rules != "" {
			return errors.New(rules)
		}
		return nil
	})

	// Egress: after the DNAT of Services, and DNS by the usual rule although it has no pod.
	s.Kubectl(t, "-n", other, "expose", "pod", "c", "--port=9000")
	service := func() string {
		ip := s.Kubectl(t, "-n", other, "get", "service", "c", "-o", "jsonpath={.spec.clusterIP}")
		return net.JoinHostPort(ip, "9000")
	}()
	harness.Eventually(t, 20*time.Second, "the Service", func() error { return ask(t.Context(), inA, "tcp", service, allowance) })
	policy(t, s, ns, "egress", `
podSelector: {matchLabels: {app: a}}
policyTypes: [Egress]`)
	lookup := func() error {
		_, _, err := s.TryPodExec(t, a, "main", "/bin/probe", "lookup", "A", "kubernetes.default.svc.cluster.local")
		return err
	}
	check(t, "with egress denied", probe{"a to c", inA, "tcp", echo(c), false}, probe{"a to the Service of c", inA, "tcp", service, false},
		probe{"a to the node", inA, "tcp", s.NodeIP + ":10250", false}, probe{"c to a", inC, "tcp", echo(a), true})
	if lookup() == nil {
		t.Error("a denied pod reaches DNS")
	}
	policy(t, s, ns, "dns", `
podSelector: {}
policyTypes: [Egress]
egress:
- to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]
  ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: `+other+`}}}]
  ports: [{port: 9000}]`)
	check(t, "with DNS and c allowed", probe{"a to the Service of c", inA, "tcp", service, true}, probe{"a to c", inA, "udp", echo(c), false},
		probe{"a to b", inA, "tcp", echo(b), false})
	if err := lookup(); err != nil {
		t.Errorf("DNS, which a policy allows: %v", err)
	}

	// Another program stops the host from filtering bridged packets.
	s.Exec(t, "sysctl", "-w", "net.bridge.bridge-nf-call-iptables=0")
	check(t, "with bridge-nf-call-iptables off", probe{"a to the Service of c", inA, "tcp", service, true}, probe{"a to b", inA, "tcp", echo(b), false})

	// Another program removes the table.
	s.Exec(t, "nft", "delete", "table", "inet", "kubelith_policy")
	harness.Eventually(t, applies, "the table to come back", func() error {
		if !strings.Contains(table(t, s), "egress-") {
			return errors.New("no table")
		}
		return nil
	})
	check(t, "after the table was removed", probe{"a to b", inA, "tcp", echo(b), false}, probe{"a to the Service of c", inA, "tcp", service, true})
	harness.Eventually(t, 10*time.Second, "an Event", func() error {
		if out := s.Kubectl(t, "events", "-A"); !strings.Contains(out, "NetworkPolicyTableRemoved") {
			return errors.New(out)
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
	s := harness.Start(t, harness.Options{})
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
	for round := range number(t, "POLICY_PODS", 40) / each {
		var pods []*corev1.Pod
		for i := range each {
			// Init containers come first; they are guarded too.
			first := harness.Container("first", harness.Shell("if /bin/probe dial --timeout=700ms "+url("8081")+"; then exit 1; fi")...)
			pod := harness.Pod(ns, fmt.Sprintf("forbidden-%d-%d", round, i), "/bin/probe", "dial", "--timeout=10s", url("8080"))
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

// TestDead: rules stay while the process is dead, and over its next start.
func TestDead(t *testing.T) {
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	a, b, c := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b")), s.Run(t, server(ns, "c"))
	inB, inC := s.ContainerPID(t, b, "main"), s.ContainerPID(t, c, "main")
	address := net.JoinHostPort(a.Status.PodIP, "9000")
	policy(t, s, ns, "some", `
podSelector: {matchLabels: {app: a}}
ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]`)
	check(t, "before", probe{"c to a", inC, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true})
	kept, err := harness.DialFrom(t.Context(), inB, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()

	ctx, stop := context.WithCancel(t.Context())
	type result struct{ through, refused int }
	done := make(chan result, 1)
	go func() {
		var r result
		for ctx.Err() == nil {
			if ask(ctx, inC, "udp", address, patience) == nil {
				r.through++
			}
			// Over UDP: TCP would send a packet again that was dropped.
			if err := ask(ctx, inB, "udp", address, allowance); err != nil && ctx.Err() == nil {
				r.refused++
			}
		}
		done <- r
	}()
	kills := number(t, "POLICY_KILLS", 3)
	for range kills {
		s.Kill9(t)
		if err := exchange(kept, allowance); err != nil {
			t.Errorf("an allowed connection, while the server is dead: %v", err)
		}
		s.Launch(t)
		s.WaitReady(t)
		if err := exchange(kept, allowance); err != nil {
			t.Errorf("an allowed connection, after the next start: %v", err)
		}
	}
	stop()
	if r := <-done; r.through > 0 || r.refused > 0 {
		t.Errorf("over %d kill -9, %d forbidden packets passed and %d allowed connections failed", kills, r.through, r.refused)
	}
	s.Restart(t)
	check(t, "after a restart", probe{"c to a", inC, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true})
}

// TestSources: what a pod sends is judged by who it is, whatever address it puts into a packet.
func TestSources(t *testing.T) {
	s := harness.Start(t, harness.Options{})
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

// TestAgent: an agent enforces policies by what other nodes' pods are, before a pod's first packet too, and while the
// server is dead. It may not read those pods.
func TestAgent(t *testing.T) {
	c := harness.StartCluster(t, harness.ClusterOptions{Agents: 1})
	s, agent := c.Server, c.Agents[0]
	ns := c.Namespace(t)
	on := func(pod *corev1.Pod, n *harness.Server) *corev1.Pod {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.NodeName()}
		return pod
	}
	a := s.Run(t, on(server(ns, "a"), agent))
	b, d := s.Run(t, on(server(ns, "b"), s)), s.Run(t, on(server(ns, "d"), s))
	inB, inD, address := c.ContainerPID(t, b, "main"), c.ContainerPID(t, d, "main"), net.JoinHostPort(a.Status.PodIP, "9000")
	policy(t, s, ns, "some", `
podSelector: {matchLabels: {app: a}}
ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]`)
	check(t, "on the agent", probe{"d to a", inD, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true},
		probe{"the agent to a", agent.PID(), "tcp", address, true}, probe{"the server to a", s.PID(), "tcp", address, false})
	// A pod of the host's network does not have its own address: its node's does not become a pod's.
	host := harness.Pod(ns, "host", "/bin/probe", "sleep")
	host.Labels, host.Spec.HostNetwork = map[string]string{"app": "b"}, true
	s.Run(t, on(host, s))
	s.Kubectl(t, "-n", ns, "label", "pod", "d", "app=b", "--overwrite")
	check(t, "with the label", probe{"d to a", inD, "tcp", address, true}, probe{"the server, where a pod of the host's network has the label, to a", s.PID(), "tcp", address, false}, probe{"b to a", inB, "tcp", address, true})
	s.Kubectl(t, "-n", ns, "label", "pod", "d", "app=d", "--overwrite")
	check(t, "without the label", probe{"d to a", inD, "tcp", address, false})

	s.Kill9(t)
	check(t, "while the server is dead", probe{"d to a", inD, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true})
	// No policy selects this pod, but no server can inform the agent of that: it is closed.
	inStatic, toStatic := staticPod(t, agent, ns)
	inA, toB := c.ContainerPID(t, a, "main"), net.JoinHostPort(b.Status.PodIP, "9000")
	check(t, "a pod that the server has not heard of", probe{"the agent to it", agent.PID(), "tcp", toStatic, true},
		probe{"a to it", inA, "tcp", toStatic, false}, probe{"it to b", inStatic, "tcp", toB, false}, probe{"a to b", inA, "tcp", toB, true})
	s.Launch(t)
	s.WaitReady(t)
	s.Kubectl(t, "-n", ns, "label", "pod", "d", "app=b", "--overwrite")
	harness.Eventually(t, 20*time.Second, "the agent to follow the server again", func() error { return ask(t.Context(), inD, "tcp", address, allowance) })
	if out := s.TryKubectl(t, "auth", "can-i", "list", "pods", "-A", "--as=system:node:"+agent.NodeName(), "--as-group=system:nodes"); !strings.Contains(out.Stdout, "no") {
		t.Errorf("may the agent read all pods? %s", out.Stdout)
	}
}

// staticPod starts a pod from a file of the agent, without the API, and returns a process in its network and where it
// serves.
func staticPod(t *testing.T, agent *harness.Server, ns string) (pid int, address string) {
	t.Helper()
	pod := server(ns, "static")
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	manifest, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	file := agent.Path(harness.DataDir + "/agent/static-pods/static.yaml")
	if err := os.WriteFile(file, manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file) })
	harness.Eventually(t, time.Minute, "the static pod", func() error {
		files, err := filepath.Glob(agent.Path(harness.RunDir + "/network-policy/*"))
		if err != nil {
			return err
		}
		for _, f := range files {
			var connected struct {
				Sandbox, Name string
				IPs           []string
			}
			content, err := os.ReadFile(f)
			if err != nil || json.Unmarshal(content, &connected) != nil || !strings.HasPrefix(connected.Name, "static-") {
				continue
			}
			address = net.JoinHostPort(connected.IPs[0], "9000")
			if pid, err = agent.TaskPID(connected.Sandbox); err != nil {
				return err
			}
			return ask(t.Context(), agent.PID(), "tcp", address, allowance)
		}
		return fmt.Errorf("it is none of %d pods", len(files))
	})
	return pid, address
}
