package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"kubelith.io/kubelith/base/names"
)

// Compiler keeps the table of one node while objects change. It is for one goroutine at a time.
type Compiler struct {
	namespaces map[string]labels.Set
	policies   map[string]map[string]*policy // by namespace and name
	cluster    []*clusterPolicy              // in the order in which they count
	nodes      map[string]*Node
	pods       map[types.UID]*peer
	addresses  map[netip.Addr]*peer // the last that got it
	profiles   map[string]*profile
	locals     map[types.UID]*local
	services   []*Service
	classes    map[string]*Class
	numbers    int

	moved   bool // the nodes have changed: rules about them must be checked
	stale   bool // the policies have changed: all locals must be checked
	changes *Changes
}

// peer is a pod of the cluster.
type peer struct {
	*Pod
	profile *profile
}

// local is a pod of this node.
type local struct {
	ips     []netip.Addr
	classes [2]*Class // nil: not selected, or closed
	names   [2]string // of the classes; "" is not selected
}

// Service is one that the nodes themselves answer, such as cluster DNS. Policies see it as a pod with these labels and
// ports.
type Service struct {
	Namespace string
	Labels    map[string]string
	Ports     []NamedPort  // as a pod behind it would have them
	Target    uint16       // the port on which the nodes answer, for each protocol of Ports
	Endpoints []netip.Addr // the nodes' addresses
	Addresses []netip.Addr // of the Service

	profile *profile
}

// ClusterDNS is the DNS of nodes with these addresses; service are the Service's.
func ClusterDNS(nodes, service []netip.Addr) Service {
	return Service{
		Namespace: metav1.NamespaceSystem,
		Labels:    map[string]string{"k8s-app": names.DNSService},
		Ports:     []NamedPort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}, {Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53}},
		Target:    names.DNSPort,
		Endpoints: nodes,
		Addresses: service,
	}
}

// Closed is the class of pods of which nothing is known yet: no connection is allowed.
const Closed = "closed"

// Changes are what has changed since the last ones.
type Changes struct {
	// New classes, and those that no pod has any more.
	New, Gone []*Class
	// Peers are decisions about addresses by who has them, before the class' Blocks and Final; nil for none any more.
	Peers map[*Class]map[netip.Addr]*Decision
	// Selected are the names of this node's pods' classes; "" for those that are no longer selected.
	Selected [2]map[netip.Addr]string
}

// Empty reports whether nothing has changed.
func (c *Changes) Empty() bool {
	return len(c.New)+len(c.Gone)+len(c.Peers)+len(c.Selected[Egress])+len(c.Selected[Ingress]) == 0
}

func newChanges() *Changes {
	return &Changes{Peers: map[*Class]map[netip.Addr]*Decision{}, Selected: [2]map[netip.Addr]string{{}, {}}}
}

// NewCompiler returns one without objects.
func NewCompiler() *Compiler {
	return &Compiler{
		namespaces: map[string]labels.Set{}, policies: map[string]map[string]*policy{}, pods: map[types.UID]*peer{},
		addresses: map[netip.Addr]*peer{}, profiles: map[string]*profile{}, locals: map[types.UID]*local{},
		classes: map[string]*Class{}, nodes: map[string]*Node{}, changes: newChanges(),
	}
}

// SetNamespace adds or changes a namespace.
func (c *Compiler) SetNamespace(name string, l map[string]string) {
	if old, ok := c.namespaces[name]; ok && maps.Equal(old, l) {
		return
	}
	c.namespaces[name] = l
	c.relabel(name)
}

// DeleteNamespace removes a namespace.
func (c *Compiler) DeleteNamespace(name string) {
	delete(c.namespaces, name)
	c.relabel(name)
}

func (c *Compiler) relabel(namespace string) {
	for _, p := range c.pods {
		if p.Namespace == namespace {
			c.setPeer(p, p.Pod)
		}
	}
	for _, s := range c.services {
		if s.Namespace == namespace {
			c.setService(s)
		}
	}
	c.stale = true
}

// SetPolicy adds or changes a NetworkPolicy. The errors are about parts that it ignores.
func (c *Compiler) SetPolicy(p *networkingv1.NetworkPolicy) []error {
	if old := c.policies[p.Namespace][p.Name]; old != nil && equality.Semantic.DeepEqual(old.spec, &p.Spec) {
		return nil
	}
	translated, errs := newPolicy(p)
	c.numbers++
	translated.number = c.numbers
	if c.policies[p.Namespace] == nil {
		c.policies[p.Namespace] = map[string]*policy{}
	}
	c.policies[p.Namespace][p.Name] = translated
	c.stale = true
	return errs
}

// DeletePolicy removes a NetworkPolicy.
func (c *Compiler) DeletePolicy(namespace, name string) {
	delete(c.policies[namespace], name)
	if len(c.policies[namespace]) == 0 {
		delete(c.policies, namespace)
	}
	c.stale = true
}

// SetClusterPolicy adds or changes a ClusterNetworkPolicy. The errors are about rules that fail closed.
func (c *Compiler) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) []error {
	is := func(old *clusterPolicy) bool { return old.name == p.Name }
	if i := slices.IndexFunc(c.cluster, is); i >= 0 && equality.Semantic.DeepEqual(c.cluster[i].spec, &p.Spec) {
		return nil
	}
	translated, errs := newClusterPolicy(p)
	translated.setNodes(c.nodes)
	c.numbers++
	translated.number = c.numbers
	c.cluster = append(slices.DeleteFunc(c.cluster, is), translated)
	slices.SortFunc(c.cluster, (*clusterPolicy).compare)
	c.stale = true
	return errs
}

// DeleteClusterPolicy removes a ClusterNetworkPolicy.
func (c *Compiler) DeleteClusterPolicy(name string) {
	c.cluster = slices.DeleteFunc(c.cluster, func(p *clusterPolicy) bool { return p.name == name })
	c.stale = true
}

// NeedsNodes reports whether a rule is about nodes. Those without SetNode are no rule's peers.
func (c *Compiler) NeedsNodes() bool {
	return slices.ContainsFunc(c.cluster, func(p *clusterPolicy) bool { return len(p.nodes) > 0 })
}

// SetNode adds or changes a node.
func (c *Compiler) SetNode(n *Node) {
	if old := c.nodes[n.Name]; old != nil && maps.Equal(old.Labels, n.Labels) && slices.Equal(old.Addresses, n.Addresses) {
		return
	}
	c.nodes[n.Name] = n
	c.moved = true
}

// DeleteNode removes a node.
func (c *Compiler) DeleteNode(name string) {
	delete(c.nodes, name)
	c.moved = true
}

// moveNodes gives the rules about nodes their addresses.
func (c *Compiler) moveNodes() {
	if !c.moved {
		return
	}
	c.moved = false
	for _, p := range c.cluster {
		if p.setNodes(c.nodes) {
			c.numbers++
			p.number = c.numbers
			c.stale = true
		}
	}
}

// SetPod adds or changes a pod of the cluster, on any node.
func (c *Compiler) SetPod(p *Pod) {
	known := c.pods[p.UID]
	if known == nil {
		known = &peer{}
		c.pods[p.UID] = known
	}
	if l := c.locals[p.UID]; l != nil { // its status may not have them yet
		with := *p
		for _, ip := range l.ips {
			if !slices.Contains(with.IPs, ip) {
				with.IPs = append(slices.Clone(with.IPs), ip)
			}
		}
		p = &with
	}
	c.setPeer(known, p)
	if l := c.locals[p.UID]; l != nil {
		c.assign(p.UID, l)
	}
}

// DeletePod removes a pod of the cluster, or one that has ended.
func (c *Compiler) DeletePod(uid types.UID) {
	known := c.pods[uid]
	if known == nil {
		return
	}
	delete(c.pods, uid)
	for _, ip := range known.IPs {
		c.leave(known, ip)
	}
}

// setPeer gives a pod its content, and updates the classes.
func (c *Compiler) setPeer(known *peer, p *Pod) {
	old := known.Pod
	known.Pod = p
	profile := c.intern(&profile{namespace: p.Namespace, namespaceLabels: c.namespaces[p.Namespace], labels: p.Labels, ports: p.Ports})
	same := profile == known.profile
	known.profile = profile
	if old != nil {
		for _, ip := range old.IPs {
			if !slices.Contains(p.IPs, ip) {
				c.leave(known, ip)
			}
		}
	}
	for _, ip := range p.IPs {
		if c.addresses[ip] == known && same {
			continue
		}
		if old == nil || !slices.Contains(old.IPs, ip) || c.addresses[ip] == nil {
			c.addresses[ip] = known
		}
		c.decide(ip)
	}
}

// leave takes an address from a pod; another pod may have had it before.
func (c *Compiler) leave(known *peer, ip netip.Addr) {
	if c.addresses[ip] != known {
		return
	}
	delete(c.addresses, ip)
	for _, other := range c.pods {
		if other != known && slices.Contains(other.IPs, ip) {
			c.addresses[ip] = other
		}
	}
	c.decide(ip)
}

// intern returns the profile that is known under the same key.
func (c *Compiler) intern(p *profile) *profile {
	k := p.key()
	if known := c.profiles[k]; known != nil {
		return known
	}
	if len(c.profiles) > 1000 && len(c.profiles) > 2*len(c.pods) {
		c.forget()
	}
	c.profiles[k] = p
	return p
}

// forget drops the profiles that no pod has any more, and what classes remember of them.
func (c *Compiler) forget() {
	used := map[*profile]bool{nil: true}
	for _, p := range c.pods {
		used[p.profile] = true
	}
	for _, s := range c.services {
		used[s.profile] = true
	}
	maps.DeleteFunc(c.profiles, func(_ string, p *profile) bool { return !used[p] })
	for _, class := range c.classes {
		maps.DeleteFunc(class.memo, func(k memoKey, _ *Decision) bool { return !used[k.profile] })
	}
}

// SetServices sets which Services the nodes answer. If there are any, it is called before anything else.
func (c *Compiler) SetServices(all []Service) {
	old := c.services
	c.services = nil
	for _, s := range all {
		c.services = append(c.services, &s)
	}
	for _, s := range old {
		for _, ip := range s.Endpoints {
			c.decide(ip)
		}
	}
	for _, s := range c.services {
		c.setService(s)
	}
}

func (c *Compiler) setService(s *Service) {
	s.profile = c.intern(&profile{namespace: s.Namespace, namespaceLabels: c.namespaces[s.Namespace], labels: s.Labels, ports: s.Ports})
	for _, ip := range s.Endpoints {
		c.decide(ip)
	}
}

// decide has all classes decide about an address again.
func (c *Compiler) decide(ip netip.Addr) {
	for _, class := range c.classes {
		c.setDecision(class, ip, c.decisionOf(class, ip))
	}
}

func (c *Compiler) decisionOf(class *Class, ip netip.Addr) *Decision {
	if p := c.addresses[ip]; p != nil {
		return class.peer(p.profile, ip)
	}
	for _, s := range c.services {
		if class.Direction == Egress && slices.Contains(s.Endpoints, ip) {
			return class.endpoint(s, ip)
		}
	}
	return nil
}

func (c *Compiler) setDecision(class *Class, ip netip.Addr, d *Decision) {
	old := class.peers[ip]
	if old == d || old != nil && d != nil && old.equal(d) {
		return
	}
	if d == nil {
		delete(class.peers, ip)
	} else {
		class.peers[ip] = d
	}
	if slices.Contains(c.changes.New, class) {
		return
	}
	if c.changes.Peers[class] == nil {
		c.changes.Peers[class] = map[netip.Addr]*Decision{}
	}
	c.changes.Peers[class][ip] = d
}

// AddLocal records that a pod of this node has these addresses, before its status does. While the pod is not known
// (SetPod), it is closed.
func (c *Compiler) AddLocal(uid types.UID, ips []netip.Addr) {
	c.DeleteLocal(uid)
	c.locals[uid] = &local{ips: ips}
	if known := c.pods[uid]; known != nil {
		c.SetPod(known.Pod)
		return
	}
	c.assign(uid, c.locals[uid])
}

// DeleteLocal records that a pod of this node has no addresses any more.
func (c *Compiler) DeleteLocal(uid types.UID) {
	l := c.locals[uid]
	if l == nil {
		return
	}
	delete(c.locals, uid)
	for d := range l.classes {
		c.join(l, Direction(d), nil, "")
	}
}

// assign gives a pod of this node its classes.
func (c *Compiler) assign(uid types.UID, l *local) {
	known := c.pods[uid]
	for d := range l.classes {
		if known == nil {
			c.join(l, Direction(d), nil, Closed)
		} else if class := c.classOf(known, Direction(d)); class == nil {
			c.join(l, Direction(d), nil, "")
		} else {
			c.join(l, Direction(d), class, class.Name)
		}
	}
}

// join moves a pod from one class to another.
func (c *Compiler) join(l *local, d Direction, class *Class, name string) {
	if class != nil {
		class.users++
	}
	if old := l.classes[d]; old != nil {
		old.users--
	}
	l.classes[d] = class
	if l.names[d] == name {
		return
	}
	l.names[d] = name
	for _, ip := range l.ips {
		c.changes.Selected[d][ip] = name
	}
}

// classOf returns the class of a pod, or nil if no policy selects it.
func (c *Compiler) classOf(p *peer, d Direction) *Class {
	t, key := c.tiersOf(p, d)
	if t == nil {
		return nil
	}
	class := c.classes[key]
	if class == nil {
		c.numbers++
		class = newClass(key, fmt.Sprintf("%s-%d", d, c.numbers), d, t)
		c.classes[key] = class
		c.changes.New = append(c.changes.New, class)
		for ip := range c.addresses {
			c.setDecision(class, ip, c.decisionOf(class, ip))
		}
		for _, s := range c.services {
			for _, ip := range s.Endpoints {
				c.setDecision(class, ip, c.decisionOf(class, ip))
			}
		}
	}
	return class
}

// tiersOf returns the rules for a pod, and what they consist of: nil if there are none.
func (c *Compiler) tiersOf(p *peer, d Direction) (*tiers, string) {
	t := &tiers{services: d == Egress && len(c.services) > 0}
	if d == Ingress {
		t.subject = p.profile
	}
	var key strings.Builder
	key.WriteString(d.String())
	named := false
	for _, name := range slices.Sorted(maps.Keys(c.policies[p.Namespace])) {
		policy := c.policies[p.Namespace][name]
		if !policy.directions[d] || !policy.selector.Matches(p.profile.labels) {
			continue
		}
		t.isolated = true
		t.isolating = append(t.isolating, "NetworkPolicy "+p.Namespace+"/"+name)
		t.policies = append(t.policies, policy.rules[d]...)
		fmt.Fprintf(&key, " %d", policy.number)
		named = named || slices.ContainsFunc(policy.rules[d], func(r *rule) bool { return len(r.named) > 0 })
	}
	for _, policy := range c.cluster {
		if len(policy.rules[d]) == 0 || !policy.subject.matches(p.profile) {
			continue
		}
		if policy.spec.Tier == policyv1alpha2.AdminTier {
			t.admin = append(t.admin, policy.rules[d]...)
		} else {
			t.baseline = append(t.baseline, policy.rules[d]...)
		}
		fmt.Fprintf(&key, " %d", policy.number)
		named = named || slices.ContainsFunc(policy.rules[d], func(r *rule) bool { return len(r.named) > 0 })
	}
	if !t.isolated && len(t.admin)+len(t.baseline) == 0 {
		return nil, ""
	}
	if named && d == Ingress { // pods with other ports are another class
		for _, port := range p.Ports {
			fmt.Fprintf(&key, " %s/%s/%d", port.Name, port.Protocol, port.Port)
		}
	}
	return t, key.String()
}

// Take returns what has changed since the last call.
func (c *Compiler) Take() *Changes {
	c.moveNodes()
	if c.stale {
		c.stale = false
		for uid, l := range c.locals {
			c.assign(uid, l)
		}
	}
	for key, class := range c.classes {
		if class.users > 0 {
			continue
		}
		delete(c.classes, key)
		delete(c.changes.Peers, class)
		if i := slices.Index(c.changes.New, class); i >= 0 {
			c.changes.New = slices.Delete(c.changes.New, i, i+1)
			continue
		}
		c.changes.Gone = append(c.changes.Gone, class)
	}
	out := c.changes
	c.changes = newChanges()
	for _, class := range out.New {
		out.Peers[class] = maps.Clone(class.peers)
	}
	return out
}

// All returns everything, as changes of an empty table.
func (c *Compiler) All() *Changes {
	c.Take()
	out := newChanges()
	for _, key := range slices.Sorted(maps.Keys(c.classes)) {
		out.New = append(out.New, c.classes[key])
		out.Peers[c.classes[key]] = maps.Clone(c.classes[key].peers)
	}
	for _, l := range c.locals {
		for d, name := range l.names {
			for _, ip := range l.ips {
				if name != "" {
					out.Selected[d][ip] = name
				}
			}
		}
	}
	return out
}

// Policies returns how many policies there are, of both kinds.
func (c *Compiler) Policies() (n int) {
	for _, of := range c.policies {
		n += len(of)
	}
	return n + len(c.cluster)
}

// Knows reports whether SetPod was called for a pod.
func (c *Compiler) Knows(uid types.UID) bool { return c.pods[uid] != nil }

// Classes returns the classes, in no order.
func (c *Compiler) Classes() []*Class { return slices.Collect(maps.Values(c.classes)) }
