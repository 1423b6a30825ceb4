package policyfuzz

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// oracle is the program of ./oracle.
type oracle struct {
	in  *json.Encoder
	out *json.Decoder
}

// cluster and question are what the program reads, verdict what it answers. It is another module, so its types are out
// of reach.
type cluster struct {
	Namespaces      []*corev1.Namespace                    `json:"namespaces"`
	Pods            []*corev1.Pod                          `json:"pods"`
	Policies        []*networkingv1.NetworkPolicy          `json:"policies"`
	ClusterPolicies []*policyv1alpha2.ClusterNetworkPolicy `json:"clusterPolicies"`
	Questions       []question                             `json:"questions"`
}

type question struct {
	From     string          `json:"from"`
	To       string          `json:"to"`
	ToPod    string          `json:"toPod,omitempty"`
	Protocol corev1.Protocol `json:"protocol"`
	Port     int             `json:"port"`
}

type verdict struct{ Egress, Ingress bool }

// startOracle builds and starts the program.
func startOracle(t *testing.T) *oracle {
	t.Helper()
	program, err := filepath.Abs("../../.cache/tools/policy-oracle")
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "oracle"
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false") // -modfile is the product's
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the oracle: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the oracle: %v", err)
		}
	})
	return &oracle{in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out))}
}

// dnsPod stands for cluster DNS, which has no pod here: the node answers. Policies see it as the pod that other
// clusters have.
var dnsPod = &corev1.Pod{
	ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "dns", Labels: map[string]string{"k8s-app": "kube-dns"}},
	Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
		{Name: "dns", Protocol: corev1.ProtocolUDP, ContainerPort: 53}, {Name: "dns-tcp", Protocol: corev1.ProtocolTCP, ContainerPort: 53},
	}}}},
}

// verdicts reports which connections should come through. Cluster DNS is seen in several ways, of which one that is
// allowed suffices: with a tier that can deny there is no such simple answer.
func (o *oracle) verdicts(w *world, s *state, probes []probe) ([]bool, error) {
	c := cluster{Namespaces: s.Namespaces, Pods: []*corev1.Pod{dnsPod}, ClusterPolicies: s.ClusterPolicies}
	for _, p := range s.known() {
		c.Pods = append(c.Pods, defaulted(p))
	}
	for _, p := range s.Policies {
		c.Policies = append(c.Policies, defaultedPolicy(p))
	}
	var of [][]int // the questions of each probe: one that is allowed suffices
	for _, p := range probes {
		q := question{
			From: w.endpoints[p.From].ips[p.Family].String(), To: w.endpoints[p.To].ips[p.Family].String(),
			Protocol: p.Protocol, Port: p.Port,
		}
		of = append(of, []int{len(c.Questions)})
		c.Questions = append(c.Questions, q)
		if p.Port == dnsPort && p.To == len(w.endpoints)-1 {
			i := len(of) - 1
			of[i] = append(of[i], len(c.Questions), len(c.Questions)+1)
			q.Port = 53
			asPod, asVIP := q, q
			asPod.ToPod = dnsPod.Namespace + "/" + dnsPod.Name
			asVIP.To = dnsVIPs[p.Family].String()
			c.Questions = append(c.Questions, asPod, asVIP)
		}
	}
	if err := o.in.Encode(c); err != nil {
		return nil, fmt.Errorf("ask the oracle: %w", err)
	}
	var verdicts []verdict
	if err := o.out.Decode(&verdicts); err != nil {
		return nil, fmt.Errorf("read the oracle's answer: %w", err)
	}
	allowed := make([]bool, len(probes))
	for i, p := range probes {
		from, to := w.endpoints[p.From], w.endpoints[p.To]
		egress, ingress := from.kind != local, to.kind != local || from.kind == node // the own node may always reach its pods
		for _, q := range of[i] {
			egress, ingress = egress || verdicts[q].Egress, ingress || verdicts[q].Ingress
		}
		if from.kind == local && s.isUnknown(p.From) || to.kind == local && from.kind != node && s.isUnknown(p.To) {
			egress = false
		}
		allowed[i] = egress && ingress
	}
	return allowed, nil
}

func (s *state) isUnknown(slot int) bool { return s.Slots[slot] != nil && s.Unknown[s.Slots[slot].UID] }

// defaulted is a pod as the API server returns it, and defaultedPolicy a policy.
func defaulted(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	for i := range p.Spec.Containers {
		for j := range p.Spec.Containers[i].Ports {
			if port := &p.Spec.Containers[i].Ports[j]; port.Protocol == "" {
				port.Protocol = corev1.ProtocolTCP
			}
		}
	}
	return p
}

func defaultedPolicy(p *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	p = p.DeepCopy()
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	protocol := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if ports[i].Protocol == nil {
				ports[i].Protocol = ptr.To(corev1.ProtocolTCP)
			}
		}
	}
	for i := range p.Spec.Ingress {
		protocol(p.Spec.Ingress[i].Ports)
	}
	for i := range p.Spec.Egress {
		protocol(p.Spec.Egress[i].Ports)
	}
	return p
}
