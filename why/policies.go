package why

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"kubelith.io/kubelith/components/worker/policy/rules"
)

// Connection is one whose network policies are requested.
type Connection struct {
	From     *corev1.Pod
	To       *corev1.Pod // nil: Address
	Address  netip.Addr
	Protocol corev1.Protocol
	Port     uint16
}

// policiesOf returns the network policies that say something about a connection: what counts at its source comes first.
func (r *Reader) policiesOf(ctx context.Context, c Connection) ([]rules.Reason, error) {
	compiler := rules.NewCompiler()
	for _, pod := range []*corev1.Pod{c.From, c.To} {
		if pod == nil {
			continue
		}
		namespace, err := get(ctx, r, "namespaces", "", pod.Namespace, r.Client.CoreV1().Namespaces().Get)
		switch {
		case err == nil:
			compiler.SetNamespace(namespace.Name, namespace.Labels)
		case !apierrors.IsNotFound(err):
			return nil, err
		}
		l, err := list(ctx, r, "networkpolicies.networking.k8s.io", pod.Namespace, metav1.ListOptions{}, r.Client.NetworkingV1().NetworkPolicies(pod.Namespace).List)
		if err != nil {
			return nil, err
		}
		for i := range l.Items {
			compiler.SetPolicy(&l.Items[i]) // the error of an invalid one is in the node's log
		}
		if p := rules.PodOf(pod); p != nil {
			p.UID = key(pod)
			compiler.SetPod(p)
		}
	}
	if err := r.addClusterPolicies(ctx, compiler); err != nil {
		return nil, err
	}
	var out []rules.Reason
	explain := func(d rules.Direction, pod *corev1.Pod, other netip.Addr) error {
		if pod == nil || !compiler.Knows(key(pod)) { // with the host's network
			return nil
		}
		reason, err := compiler.Explain(key(pod), d, other, c.Protocol, c.Port)
		out = append(out, reason)
		return err
	}
	from, to := addressOf(c.From, c.Address), c.Address
	if c.To != nil {
		to = addressOf(c.To, from)
		from = addressOf(c.From, to)
	}
	if !from.IsValid() || !to.IsValid() {
		return nil, fmt.Errorf("the two ends share no IP family")
	}
	if c.To != nil && key(c.To) == key(c.From) {
		return nil, nil // a pod may always reach itself
	}
	if err := explain(rules.Egress, c.From, to); err != nil {
		return nil, err
	}
	return out, explain(rules.Ingress, c.To, from)
}

var clusterPolicies = schema.GroupVersion(policyv1alpha2.GroupVersion).WithResource("clusternetworkpolicies")

// addClusterPolicies adds the ClusterNetworkPolicies. Where their custom resource is missing there are none; who may
// not read them gets an answer without them.
func (r *Reader) addClusterPolicies(ctx context.Context, compiler *rules.Compiler) error {
	missing := func(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) }
	l, err := list(ctx, r, clusterPolicies.GroupResource().String(), "", metav1.ListOptions{}, r.Dynamic.Resource(clusterPolicies).List)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, item := range l.Items {
		var p policyv1alpha2.ClusterNetworkPolicy
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &p); err != nil {
			return fmt.Errorf("ClusterNetworkPolicy %s: %w", item.GetName(), err)
		}
		compiler.SetClusterPolicy(&p) // the error of an invalid one is in the node's log
	}
	if !compiler.NeedsNodes() {
		return nil
	}
	nodes, err := list(ctx, r, "nodes", "", metav1.ListOptions{}, r.Client.CoreV1().Nodes().List)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		compiler.SetNode(rules.NodeOf(&nodes.Items[i]))
	}
	return nil
}

func key(pod *corev1.Pod) types.UID { return types.UID(pod.Namespace + "/" + pod.Name) }

// addressOf returns the address of a pod that is of the family of another one, or the first if that is none.
func addressOf(pod *corev1.Pod, like netip.Addr) netip.Addr {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && (!like.IsValid() || a.Is4() == like.Is4()) {
			return a
		}
	}
	if a, err := netip.ParseAddr(pod.Status.PodIP); err == nil && len(pod.Status.PodIPs) == 0 {
		return a
	}
	return netip.Addr{}
}

// PolicyAnswer reports whether network policies allow a connection.
type PolicyAnswer struct {
	Allowed bool
	// Reasons are about the source's egress and the destination's ingress; those of pods with the host's network are
	// missing.
	Reasons []rules.Reason
	// Unread is what the caller may not read, and what Reasons therefore lacks.
	Unread []string
}

// ExplainPolicies reports whether network policies allow a connection between pods, or from a pod to an address: by the
// specification, whatever enforces it.
func ExplainPolicies(ctx context.Context, r *Reader, c Connection) (*PolicyAnswer, error) {
	reasons, err := r.policiesOf(ctx, c)
	if err != nil {
		return nil, err
	}
	a := &PolicyAnswer{Allowed: true, Reasons: reasons, Unread: r.unread}
	for _, reason := range reasons {
		a.Allowed = a.Allowed && reason.Verdict == rules.Allow
	}
	return a, nil
}

// policies searches for network policies that deny the connection, and otherwise notes that there are none.
func (r *Reader) policies(ctx context.Context, f *Finding, q Reach, from *corev1.Pod, to []destination) *Finding {
	selected := false
	for _, d := range to {
		for _, port := range d.ports {
			a, err := ExplainPolicies(ctx, r, Connection{From: from, To: d.pod, Protocol: corev1.ProtocolTCP, Port: uint16(port)})
			if err != nil {
				r.unread = append(r.unread, fmt.Sprintf("network policies between %s and %s: %v", podObject(from), podObject(d.pod), err))
				continue
			}
			for _, reason := range a.Reasons {
				selected = selected || len(reason.Policies) > 0
				if reason.Direction == rules.Ingress && len(reason.Policies) > 0 {
					r.guarded[podObject(d.pod)] = true
				}
				if reason.Verdict == rules.Allow {
					continue
				}
				whose, others := podObject(from), "to "+podObject(d.pod).String()
				if reason.Direction == rules.Ingress {
					whose, others = podObject(d.pod), "from "+podObject(from).String()
				}
				denied := broken(PolicyForbids, fmt.Sprintf("the %s policies of %s do not allow connections %s at port %d", reason.Direction, whose, others, port)).
					saw("network policies", fmt.Sprintf("%s: %s", whose, reason)).under(q.From.Object(), podObject(d.pod))
				if reason.Rule != "" {
					return denied.do(fmt.Sprintf("Change %s of %s.", reason.Rule, reason.Policy))
				}
				return denied.do(fmt.Sprintf("Add a rule to %s, or another policy that allows it.", strings.Join(reason.Policies, " or ")))
			}
		}
	}
	if selected {
		f.not(PolicyForbids, "a NetworkPolicy forbids it", "those that select these pods allow it")
	} else {
		f.not(PolicyForbids, "a NetworkPolicy forbids it", "none selects these pods, or the port is unknown")
	}
	return nil
}
