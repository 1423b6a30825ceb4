package policy

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

// TestManyBlocks: a policy with 10,000 CIDRs, with ports, is stored, enforced and explained, and a change of it too. It
// logs what that costs.
func TestManyBlocks(t *testing.T) {
	s := shared(t)
	ns := s.Namespace(t)
	target := server(ns, "b")
	target.Spec.Containers = append(target.Spec.Containers, harness.Container("sink", "/bin/probe", "sink"))
	a, b, c := s.Run(t, server(ns, "a")), s.Run(t, target), s.Run(t, server(ns, "c"))
	inA := s.ContainerPID(t, a, "main")
	echo := func(pod *corev1.Pod) string { return net.JoinHostPort(pod.Status.PodIP, "9000") }
	roundTrip := func() string {
		t.Helper()
		var got struct{ MedianMicroseconds float64 }
		args := []string{fmt.Sprintf("--net=/proc/%d/ns/net", inA), fmt.Sprintf("/proc/%d/root/bin/probe", inA), "latency", "--count=1000", net.JoinHostPort(b.Status.PodIP, "9100")}
		harness.Eventually(t, 20*time.Second, "round trips", func() error {
			out, err := exec.Command("nsenter", args...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return json.Unmarshal(out, &got)
		})
		return fmt.Sprintf("a round trip takes %.1f µs, %s", got.MedianMicroseconds, memory(t, s.PID()))
	}
	t.Logf("without policies: %s", roundTrip())
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "blocks"}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": "a"}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	var to []networkingv1.NetworkPolicyPeer
	for i := range 9999 {
		to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("100.%d.%d.0/25", 64+i/256, i%256)}})
	}
	to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: b.Status.PodIP + "/32"}})
	var ports []networkingv1.NetworkPolicyPort
	for _, number := range []int{9000, 9100} {
		port, tcp := intstr.FromInt(number), corev1.ProtocolTCP
		ports = append(ports, networkingv1.NetworkPolicyPort{Port: &port, Protocol: &tcp})
	}
	p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: to, Ports: ports}}
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
			if ask(t.Context(), inA, "tcp", echo(pod), patience) == nil {
				return fmt.Errorf("it is reached")
			}
			return nil
		})
	}
	denied(c)
	t.Logf("stored after %s, enforced after %s and a timeout of a connection, which is %s", stored, time.Since(begun), patience)
	check(t, "with 10,000 blocks", probe{"a to b", inA, "tcp", echo(b), true}, probe{"a to c", inA, "tcp", echo(c), false})
	t.Logf("with 10,000 blocks: %s", roundTrip())
	for target, want := range map[string]string{"b:9000": "egress: allow by NetworkPolicy " + ns + "/blocks, egress rule 1", "c:9000": "egress: deny, no rule of NetworkPolicy " + ns + "/blocks matches"} {
		if out := s.RunBinary(t, "policy", "explain", "-n", ns, "a", target).Stdout; !strings.Contains(out, want) || len(out) > 500 {
			t.Errorf("a to %s is explained as\n%s\nwant %s", target, out, want)
		}
	}

	p.Spec.Egress[0].To = to[:9999]
	if _, err := policies.Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	denied(b)
}

// memory is what the process and the kernel use.
func memory(t *testing.T, pid int) string {
	t.Helper()
	line := func(file, key string) string {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(content)) {
			if strings.HasPrefix(l, key+":") {
				return strings.Join(strings.Fields(l), " ")
			}
		}
		t.Fatalf("%s has no %s", file, key)
		return ""
	}
	return line(fmt.Sprintf("/proc/%d/status", pid), "VmRSS") + ", " + line("/proc/meminfo", "SUnreclaim") + " of the machine"
}
