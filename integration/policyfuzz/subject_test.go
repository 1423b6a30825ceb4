package policyfuzz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"kubelith.io/kubelith/components/worker/policy/kernel"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

// subject is what is tested: the rules and the table of the world's node.
type subject struct {
	w        *world
	compiler *rules.Compiler
	table    *kernel.Table
	ports    *kernel.Ports
	now      *state // as written
}

func newSubject(w *world) *subject {
	return &subject{w: w, table: kernel.New(true, true), ports: &kernel.Ports{}}
}

// restart begins with a state, as a new process does.
func (s *subject) restart(to *state) error {
	s.compiler, s.now = rules.NewCompiler(), &state{}
	last := s.w.endpoints[len(s.w.endpoints)-1]
	s.compiler.SetServices([]rules.Service{{
		Namespace: dnsPod.Namespace,
		Labels:    dnsPod.Labels,
		Ports:     []rules.NamedPort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}, {Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53}},
		Target:    dnsPort,
		Endpoints: last.ips[:],
		Addresses: dnsVIPs[:],
	}})
	for _, events := range s.events(to) {
		for _, e := range events {
			e()
		}
	}
	s.now = to
	return s.write(func() error { return s.table.Replace(context.Background(), s.compiler.All()) })
}

// write runs a write of the table, and guards the ports of the pods that there are now.
func (s *subject) write(table func() error) error {
	guarded := map[string][]netip.Addr{}
	for i := range locals {
		if p := s.now.Slots[i]; p != nil {
			guarded[fmt.Sprintf("veth%d", i)] = s.w.endpoints[i].ips[:]
		}
	}
	return s.w.router.Do(func(ns.NetNS) error { return errors.Join(table(), s.ports.Write(context.Background(), guarded)) })
}

// change goes on to another state. What belongs together comes in its order, everything else in any, with writes at any
// time.
func (s *subject) change(to *state, random *rand.Rand) error {
	queues := s.events(to)
	write := func() error {
		changes := s.compiler.Take()
		if err := s.write(func() error { return s.table.Apply(context.Background(), changes) }); err != nil {
			return fmt.Errorf("write changes: %w", err)
		}
		return nil
	}
	for len(queues) > 0 {
		i := random.IntN(len(queues))
		queues[i][0]()
		if queues[i] = queues[i][1:]; len(queues[i]) == 0 {
			queues[i] = queues[len(queues)-1]
			queues = queues[:len(queues)-1]
		}
		if random.IntN(10) == 0 {
			if err := write(); err != nil {
				return err
			}
		}
	}
	s.now = to
	return write()
}

// events are the calls that bring the compiler to a state, those of an object in their order.
func (s *subject) events(to *state) (queues [][]func()) {
	add := func(events ...func()) { queues = append(queues, events) }
	c := s.compiler

	old := map[string]*corev1.Namespace{}
	for _, n := range s.now.Namespaces {
		old[n.Name] = n
	}
	for _, n := range to.Namespaces {
		if o := old[n.Name]; o == nil || !maps.Equal(o.Labels, n.Labels) {
			add(func() { c.SetNamespace(n.Name, maps.Clone(n.Labels)) })
		}
		delete(old, n.Name)
	}
	for name := range old {
		add(func() { c.DeleteNamespace(name) })
	}

	policies := map[string]*networkingv1.NetworkPolicy{}
	for _, p := range s.now.Policies {
		policies[p.Namespace+"/"+p.Name] = p
	}
	for _, p := range to.Policies {
		if o := policies[p.Namespace+"/"+p.Name]; o == nil || !reflect.DeepEqual(o, p) {
			add(func() {
				for _, err := range c.SetPolicy(p) {
					panic(err)
				}
			})
		}
		delete(policies, p.Namespace+"/"+p.Name)
	}
	for _, p := range policies {
		add(func() { c.DeletePolicy(p.Namespace, p.Name) })
	}

	wide := map[string]*policyv1alpha2.ClusterNetworkPolicy{}
	for _, p := range s.now.ClusterPolicies {
		wide[p.Name] = p
	}
	for _, p := range to.ClusterPolicies {
		if o := wide[p.Name]; o == nil || !reflect.DeepEqual(o, p) {
			add(func() {
				for _, err := range c.SetClusterPolicy(p) {
					panic(err)
				}
			})
		}
		delete(wide, p.Name)
	}
	for _, p := range wide {
		add(func() { c.DeleteClusterPolicy(p.Name) })
	}

	// The API's events of pods.
	set := func(p *corev1.Pod) {
		if pod := rules.PodOf(p); pod != nil {
			c.SetPod(pod)
		} else {
			c.DeletePod(p.UID)
		}
	}
	gone := map[string]*corev1.Pod{}
	for _, p := range s.now.known() {
		gone[string(p.UID)] = p
	}
	for _, p := range to.known() {
		o := gone[string(p.UID)]
		delete(gone, string(p.UID))
		if o == nil {
			pending := p.DeepCopy()
			pending.Status = corev1.PodStatus{Phase: corev1.PodPending}
			add(func() { set(pending) }, func() { set(p) })
		} else if !reflect.DeepEqual(o, p) {
			add(func() { set(p) })
		}
	}
	for _, p := range gone {
		add(func() { c.DeletePod(p.UID) })
	}

	// The runtime's.
	for i := range locals {
		var o, n *corev1.Pod
		if i < len(s.now.Slots) {
			o = s.now.Slots[i]
		}
		n = to.Slots[i]
		if o != nil && n != nil && o.UID == n.UID {
			continue
		}
		var events []func()
		if o != nil {
			events = append(events, func() { c.DeleteLocal(o.UID) })
		}
		if n != nil {
			ips := make([]netip.Addr, 2)
			copy(ips, s.w.endpoints[i].ips[:])
			events = append(events, func() { c.AddLocal(n.UID, ips) })
		}
		if len(events) > 0 {
			add(events...)
		}
	}
	return queues
}

// explain returns the verdict of the pure functions on a probe.
func (s *subject) explain(p probe) (bool, error) {
	if s.w.endpoints[p.From].kind == node {
		return true, nil
	}
	for _, end := range []struct {
		at, other int
		rules.Direction
	}{{p.From, p.To, rules.Egress}, {p.To, p.From, rules.Ingress}} {
		e := s.w.endpoints[end.at]
		if e.kind != local || s.now.Slots[end.at] == nil {
			continue
		}
		if s.now.isUnknown(end.at) {
			return false, nil
		}
		r, err := s.compiler.Explain(s.now.Slots[end.at].UID, end.Direction, s.w.endpoints[end.other].ips[p.Family], p.Protocol, uint16(p.Port))
		if err != nil {
			return false, err
		}
		if r.Verdict != rules.Allow {
			return false, nil
		}
	}
	return true, nil
}
