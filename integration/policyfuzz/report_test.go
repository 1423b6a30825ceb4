package policyfuzz

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/integration/harness"
)

// report makes the case of a difference as small as it can, and describes it.
func (f *fuzz) report(before, now *state, order uint64, found []difference, failure error) string {
	var b strings.Builder
	for i, d := range found {
		if i == 8 {
			fmt.Fprintf(&b, "\n  and %d more", len(found)-i)
			break
		}
		b.WriteString("\n  " + f.text(d))
	}
	if failure != nil {
		fmt.Fprintf(&b, "\n  %v", failure)
	}
	f.w.patience = patience / 6 // whatever differs here differs again
	defer func() { f.w.patience = harness.Patience(patience) }()
	var probes []probe
	if len(found) > 0 {
		d := found[0]
		d.Kept = false
		probes = []probe{d.probe}
	}
	fails := func(a, b *state) bool {
		if a != nil {
			if f.subject.restart(a) != nil {
				return failure != nil
			}
			if f.subject.change(b, rand.New(rand.NewPCG(order, 0))) != nil {
				return failure != nil
			}
		} else if f.subject.restart(b) != nil {
			return failure != nil
		}
		if len(probes) == 0 {
			return false
		}
		again, err := f.compare(b, probes, map[string]int{})
		return err == nil && len(again) > 0
	}
	switch {
	case fails(nil, now):
		before = nil
	case before != nil && fails(before, now):
		b.WriteString("\nonly after the change from the first of these states:")
	default:
		b.WriteString("\nnot again in a new table")
		return b.String()
	}
	before, now = shrink(before, now, fails)
	for _, s := range []*state{before, now} {
		if s != nil {
			b.WriteString("\n" + f.describe(s, probes))
		}
	}
	return b.String()
}

// shrink removes what the difference does not need. What is removed from the one state is removed from the other.
func shrink(before, now *state, fails func(a, b *state) bool) (*state, *state) {
	try := func(edit func(*state) bool) bool {
		var a *state
		changed := false
		if before != nil {
			a = before.clone()
			changed = edit(a)
		}
		b := now.clone()
		changed = edit(b) || changed
		if changed && fails(a, b) {
			before, now = a, b
			return true
		}
		return false
	}
	for again, rounds := true, 0; again && rounds < 5; rounds++ {
		again = false
		for _, edit := range edits(before, now) {
			again = try(edit) || again
		}
	}
	return before, now
}

// edits are the removals that can be tried. Each reports whether there was something to remove.
func edits(before, now *state) (out []func(*state) bool) {
	states := []*state{now}
	if before != nil {
		states = append(states, before)
	}
	for _, s := range states {
		for _, p := range s.Policies {
			out = append(out, func(s *state) bool {
				n := len(s.Policies)
				s.Policies = slices.DeleteFunc(s.Policies, func(o *networkingv1.NetworkPolicy) bool { return o.Name == p.Name })
				return len(s.Policies) < n
			})
		}
	}
	for _, s := range states {
		for _, p := range s.ClusterPolicies {
			out = append(out, func(s *state) bool {
				n := len(s.ClusterPolicies)
				s.ClusterPolicies = slices.DeleteFunc(s.ClusterPolicies, func(o *policyv1alpha2.ClusterNetworkPolicy) bool { return o.Name == p.Name })
				return len(s.ClusterPolicies) < n
			})
		}
	}
	for _, p := range now.ClusterPolicies {
		for i := range 2 {
			for _, rules := range []func(*policyv1alpha2.ClusterNetworkPolicySpec) bool{
				func(s *policyv1alpha2.ClusterNetworkPolicySpec) bool { return remove(&s.Ingress, i) },
				func(s *policyv1alpha2.ClusterNetworkPolicySpec) bool { return remove(&s.Egress, i) },
			} {
				out = append(out, func(s *state) bool {
					return slices.ContainsFunc(s.ClusterPolicies, func(o *policyv1alpha2.ClusterNetworkPolicy) bool { return o.Name == p.Name && rules(&o.Spec) })
				})
			}
		}
	}
	for i := range now.Slots {
		out = append(out, func(s *state) bool {
			there := s.Slots[i] != nil
			s.Slots[i] = nil
			return there
		})
	}
	out = append(out, func(s *state) bool {
		there := len(s.Others) > 0
		s.Others = nil
		return there
	})
	// Then what is within.
	spec := func(name string, edit func(*networkingv1.NetworkPolicySpec) bool) {
		out = append(out, func(s *state) bool {
			for _, p := range s.Policies {
				if p.Name == name {
					return edit(&p.Spec)
				}
			}
			return false
		})
	}
	for _, p := range now.Policies {
		for i := range 4 {
			spec(p.Name, func(s *networkingv1.NetworkPolicySpec) bool { return remove(&s.Ingress, i) })
			spec(p.Name, func(s *networkingv1.NetworkPolicySpec) bool { return remove(&s.Egress, i) })
			for j := range 3 {
				spec(p.Name, func(s *networkingv1.NetworkPolicySpec) bool {
					return i < len(s.Ingress) && len(s.Ingress[i].From) > 1 && remove(&s.Ingress[i].From, j)
				})
				spec(p.Name, func(s *networkingv1.NetworkPolicySpec) bool {
					return i < len(s.Ingress) && len(s.Ingress[i].Ports) > 1 && remove(&s.Ingress[i].Ports, j)
				})
				spec(p.Name, func(s *networkingv1.NetworkPolicySpec) bool {
					return i < len(s.Egress) && len(s.Egress[i].To) > 1 && remove(&s.Egress[i].To, j)
				})
				spec(p.Name, func(s *networkingv1.NetworkPolicySpec) bool {
					return i < len(s.Egress) && len(s.Egress[i].Ports) > 1 && remove(&s.Egress[i].Ports, j)
				})
			}
		}
	}
	for i := range now.Slots {
		out = append(out, func(s *state) bool {
			if s.Slots[i] == nil || len(s.Slots[i].Labels) == 0 {
				return false
			}
			s.Slots[i].Labels = nil
			return true
		}, func(s *state) bool {
			if s.Slots[i] == nil || len(s.Slots[i].Spec.Containers) == 0 {
				return false
			}
			s.Slots[i].Spec.Containers = nil
			return true
		})
	}
	return out
}

func remove[T any](list *[]T, i int) bool {
	if i >= len(*list) {
		return false
	}
	*list = slices.Delete(*list, i, i+1)
	return true
}

// describe prints a state.
func (f *fuzz) describe(s *state, probes []probe) string {
	var b strings.Builder
	for _, n := range s.Namespaces {
		fmt.Fprintf(&b, "namespace %s %v\n", n.Name, n.Labels)
	}
	pod := func(where string, p *corev1.Pod) {
		fmt.Fprintf(&b, "%s: pod %s/%s %v, host network %v, %s, unknown %v, ports", where, p.Namespace, p.Name, p.Labels, p.Spec.HostNetwork, p.Status.Phase, s.Unknown[p.UID])
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				fmt.Fprintf(&b, " %s=%d/%s", port.Name, port.ContainerPort, port.Protocol)
			}
		}
		fmt.Fprintf(&b, ", %v\n", p.Status.PodIPs)
	}
	for i, p := range s.Slots {
		if p != nil {
			pod(f.w.endpoints[i].name, p)
		}
	}
	for _, p := range s.Others {
		pod("other", p)
	}
	for _, p := range s.Policies {
		text, _ := yaml.Marshal(p)
		b.WriteString("---\n" + string(text))
	}
	for _, p := range s.ClusterPolicies {
		text, _ := yaml.Marshal(p)
		b.WriteString("---\n" + string(text))
	}
	for _, p := range probes {
		b.WriteString("probe: " + f.w.text(p) + "\n")
	}
	return b.String()
}
