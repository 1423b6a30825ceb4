// Package kernel writes the tables of network policies to the kernel: one nftables table, in which the cost of a packet
// does not depend on how many pods and policies there are.
//
// The chains forward and input look up the classes of the connection's source (egress) and destination (ingress); what
// a class allows returns to them. All check the connection as conntrack knows it, after the DNAT of Services and before
// any SNAT, and packets of both directions: so a change ends connections that it forbids. Of what the node sends (chain
// output), only answers to pods are checked: its own connections to pods are always allowed. Nothing is removed when
// the process ends.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nft"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

// family is IPv4 or IPv6 in nft's words.
type family struct{ name, address string }

var (
	v4 = family{"ip", "ipv4_addr"}
	v6 = family{"ip6", "ipv6_addr"}
)

func familyOf(ip netip.Addr) family {
	if ip.Is4() {
		return v4
	}
	return v6
}

// Table is the table in the kernel, and what is in it.
type Table struct {
	nft      knftables.Interface // nil before it is first needed
	families []family
	log      int // dropped packets a second and class, see Drop; 0: none

	whole    bool           // a table of this process is there
	fixed    map[string]int // how many rules frame has added to each chain
	selected [2]map[netip.Addr]string
	peers    map[string]map[netip.Addr]*rules.Decision // by class
}

// New returns the table; nothing is written. The pods have addresses of these families.
func New(ipv4, ipv6 bool) *Table { return newTable(nil, ipv4, ipv6) }

func newTable(nft knftables.Interface, ipv4, ipv6 bool) *Table {
	t := &Table{nft: nft}
	if ipv4 {
		t.families = append(t.families, v4)
	}
	if ipv6 {
		t.families = append(t.families, v6)
	}
	return t
}

// open opens the table at its first use: a node without policies starts without these calls of nft.
func (t *Table) open() (err error) {
	if t.nft == nil {
		if t.nft, err = nft.Open(knftables.InetFamily, names.PolicyTable); err != nil {
			return fmt.Errorf("network policies need nft: %w", err)
		}
	}
	return nil
}

// LogDrops has the next table that Replace writes report dropped packets to ReadDrops, at most that many a second of
// each class.
func (t *Table) LogDrops(perSecond int) { t.log = perSecond }

// Remove removes the table.
func (t *Table) Remove() error {
	t.whole = false
	return removeTable()
}

func removeTable() error {
	if err := nft.Remove(knftables.InetFamily, names.PolicyTable); err != nil {
		return fmt.Errorf("remove the rules of network policies: %w", err)
	}
	return nil
}

// Remove removes the tables of an earlier run.
func Remove() error { return errors.Join(removeTable(), removePorts()) }

// Replace writes a whole table in place of whatever is there, at once: no packet meets half of it.
func (t *Table) Replace(ctx context.Context, all *rules.Changes) error {
	if err := t.open(); err != nil {
		return err
	}
	tx := t.nft.NewTransaction()
	t.build(tx, all)
	t.whole = false
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write the rules of network policies: %w", err)
	}
	t.whole = true
	return nil
}

// build adds the whole table.
func (t *Table) build(tx *knftables.Transaction, all *rules.Changes) {
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("Kubelith: network policies")})
	t.selected = [2]map[netip.Addr]string{{}, {}}
	t.peers = map[string]map[netip.Addr]*rules.Decision{}
	t.frame(tx)
	t.add(tx, all)
}

// Close denies all connections of addresses, before anything else is known of the table: an earlier process' is kept.
func (t *Table) Close(ctx context.Context, ips []netip.Addr) error {
	if err := t.open(); err != nil {
		return err
	}
	chains, err := t.nft.List(ctx, "chains")
	if err != nil && !knftables.IsNotFound(err) {
		return fmt.Errorf("read the rules of network policies: %w", err)
	}
	tx := t.nft.NewTransaction()
	if !slices.Contains(chains, rules.Closed) {
		tx.Add(&knftables.Table{})
		t.frame(tx)
	}
	for _, ip := range ips {
		f := familyOf(ip)
		if !slices.Contains(t.families, f) {
			continue
		}
		for _, d := range []rules.Direction{rules.Egress, rules.Ingress} {
			tx.Add(&knftables.Element{Map: selectedMap(d, f), Key: []string{ip.String()}, Value: []string{"jump " + rules.Closed}})
		}
	}
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("close the network of a pod: %w", err)
	}
	return nil
}

// Apply writes changes. After an error only Replace helps.
func (t *Table) Apply(ctx context.Context, changes *rules.Changes) error {
	if !t.whole {
		return fmt.Errorf("the rules of network policies are not complete")
	}
	tx := t.nft.NewTransaction()
	t.add(tx, changes)
	if tx.NumOperations() == 0 {
		return nil
	}
	if err := t.nft.Run(ctx, tx); err != nil {
		t.whole = false
		return fmt.Errorf("change the rules of network policies: %w", err)
	}
	return nil
}

// Whole reports whether the table is as written.
func (t *Table) Whole() bool { return t.whole }

// Dropped returns how many packets each class has dropped since it exists. It is an error if there is no table.
func Dropped(ctx context.Context) (map[string]uint64, error) {
	table, err := nft.Open(knftables.InetFamily, names.PolicyTable)
	if err != nil {
		return nil, err
	}
	counters, err := table.ListCounters(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for _, c := range counters {
		if c.Packets != nil {
			out[c.Name] = *c.Packets
		}
	}
	return out, nil
}

// The chains that are always there.
const (
	forward        = "forward"
	input          = "input"
	output         = "output"
	related        = "related"
	untracked      = "untracked"
	untrackedInput = "untracked-input"
)

// fixedChains are those whose rules do not change, of both tables.
func fixedChains() []string {
	return []string{forward, input, output, related, untracked, untrackedInput, pod, prerouting}
}

// frame adds what is always there.
func (t *Table) frame(tx *knftables.Transaction) {
	base(tx, forward, knftables.ForwardHook)
	base(tx, input, knftables.InputHook)
	t.fixed = map[string]int{}
	add := func(chain string, parts ...string) {
		tx.Add(rule(chain, parts...))
		t.fixed[chain]++
	}
	for _, chain := range []string{untracked, untrackedInput} {
		tx.Add(&knftables.Chain{Name: chain})
		// Without them there is no address to send to.
		add(chain, "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept")
	}
	for _, f := range t.families {
		for _, d := range []rules.Direction{rules.Egress, rules.Ingress} {
			tx.Add(&knftables.Map{Name: selectedMap(d, f), Type: f.address + " : verdict"})
		}
		tx.Add(&knftables.Set{Name: selfSet(f), Type: f.address + " . " + f.address})
	}
	tx.Add(&knftables.Chain{Name: related})
	// Errors about a connection follow it: they have no ports themselves.
	add(related, "meta l4proto { icmp, ipv6-icmp } accept")
	for chain, without := range map[string]string{forward: untracked, input: untrackedInput} {
		// One lookup, not a rule for each state: every packet comes by here.
		add(chain, "ct state vmap { related : jump", related, ", invalid : jump", without, ", untracked : jump", without, "}")
		for _, f := range t.families {
			add(chain, "ct original", f.name, "saddr vmap @"+selectedMap(rules.Egress, f))
			add(without, f.name, "saddr vmap @"+selectedMap(rules.Egress, f))
		}
		if chain == input {
			continue
		}
		for _, f := range t.families {
			add(chain, "ct reply", f.name, "saddr vmap @"+selectedMap(rules.Ingress, f))
			add(without, f.name, "daddr vmap @"+selectedMap(rules.Ingress, f))
		}
	}
	base(tx, output, knftables.OutputHook)
	for _, f := range t.families {
		add(output, "ct direction reply ct original", f.name, "saddr vmap @"+selectedMap(rules.Egress, f))
	}
	t.addDrop(tx, rules.Closed)
	tx.Add(&knftables.Chain{Name: rules.Closed})
	tx.Add(rule(rules.Closed, "goto", dropChain(rules.Closed)))
}

func base(tx *knftables.Transaction, name string, hook knftables.BaseChainHook) {
	tx.Add(&knftables.Chain{
		Name: name, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook), Priority: knftables.PtrTo(knftables.FilterPriority),
	})
}

func rule(chain string, parts ...string) *knftables.Rule {
	return &knftables.Rule{Chain: chain, Rule: strings.Join(parts, " ")}
}

func selectedMap(d rules.Direction, f family) string { return d.String() + "-" + f.name }

// selfSet has the addresses of selected pods twice: a pod that reaches itself through its Service is not held up.
func selfSet(f family) string { return "self-" + f.name }

func dropChain(class string) string { return class + "-drop" }

// addDrop adds the chain and the counter of what a class drops.
func (t *Table) addDrop(tx *knftables.Transaction, class string) {
	chain := dropChain(class)
	tx.Add(&knftables.Counter{Name: class})
	tx.Add(&knftables.Chain{Name: chain})
	for _, f := range t.families {
		tx.Add(rule(chain, "ct original", f.name, "saddr . ct reply", f.name, "saddr @"+selfSet(f), "return"))
	}
	if t.log > 0 {
		// Packets of no connection are dropped without a line: no policy is the reason.
		for _, direction := range []string{"original", "reply"} {
			tx.Add(rule(chain, "ct direction", direction, fmt.Sprintf("limit rate %d/second burst %d packets", t.log, t.log),
				"log prefix", strconv.Quote(logPrefix(class, direction)), "group", strconv.Itoa(names.PolicyLogGroup), "snaplen", strconv.Itoa(snapshot)))
		}
	}
	tx.Add(rule(chain, "counter name", class, "drop"))
}

// add adds changes to a transaction: what is referred to comes first.
func (t *Table) add(tx *knftables.Transaction, changes *rules.Changes) {
	for _, c := range changes.New {
		t.addClass(tx, c)
	}
	for c, peers := range changes.Peers {
		for ip, d := range peers {
			t.setPeer(tx, c, ip, d)
		}
	}
	for d, selected := range changes.Selected {
		for ip, class := range selected {
			t.sel(tx, rules.Direction(d), ip, class)
		}
	}
	for _, c := range changes.Gone {
		t.deleteClass(tx, c)
	}
}

// sel gives a pod its class.
func (t *Table) sel(tx *knftables.Transaction, d rules.Direction, ip netip.Addr, class string) {
	f := familyOf(ip)
	old := t.selected[d][ip]
	if !slices.Contains(t.families, f) || old == class {
		return
	}
	before := t.isSelected(ip)
	if old != "" {
		tx.Delete(&knftables.Element{Map: selectedMap(d, f), Key: []string{ip.String()}, Value: []string{"jump " + old}})
		delete(t.selected[d], ip)
	}
	if class != "" {
		tx.Add(&knftables.Element{Map: selectedMap(d, f), Key: []string{ip.String()}, Value: []string{"jump " + class}})
		t.selected[d][ip] = class
	}
	self := &knftables.Element{Set: selfSet(f), Key: []string{ip.String(), ip.String()}}
	switch after := t.isSelected(ip); {
	case after && !before:
		tx.Add(self)
	case before && !after:
		tx.Delete(self)
	}
}

func (t *Table) isSelected(ip netip.Addr) bool {
	return t.selected[rules.Egress][ip] != "" || t.selected[rules.Ingress][ip] != ""
}

// The kinds of a class' maps. Those of ports and ranges are looked up first.
const (
	ports      = "ports"
	ranges     = "ranges"
	peers      = "peers"
	blockPorts = "block-ports"
	blocks     = "blocks"
)

func classMap(c *rules.Class, kind string, f family) string {
	return c.Name + "-" + kind + "-" + f.name
}

// mapsOf returns the maps of a class in one family, in the order of their lookup.
func mapsOf(c *rules.Class, f family) []*knftables.Map {
	made := func(kind string, withPorts, interval bool) *knftables.Map {
		m := &knftables.Map{Name: classMap(c, kind, f), Type: f.address + " : verdict"}
		if withPorts {
			m.Type = f.address + " . inet_proto . inet_service : verdict"
		}
		if interval {
			m.Flags = []knftables.SetFlag{knftables.IntervalFlag}
		}
		return m
	}
	var out []*knftables.Map
	if c.HasPorts() {
		out = append(out, made(ports, true, false), made(ranges, true, true))
	}
	out = append(out, made(peers, false, false))
	var plain, with bool
	for _, b := range c.Blocks {
		if b.Range.From().Is4() != (f == v4) {
			continue
		}
		plain = plain || b.Decision.Other != c.Final
		with = with || !b.Decision.Uniform()
	}
	if with {
		out = append(out, made(blockPorts, true, true))
	}
	if plain {
		out = append(out, made(blocks, false, true))
	}
	return out
}

func (t *Table) addClass(tx *knftables.Transaction, c *rules.Class) {
	t.addDrop(tx, c.Name)
	tx.Add(&knftables.Chain{Name: c.Name, Comment: comment(c)})
	t.peers[c.Name] = map[netip.Addr]*rules.Decision{}
	for _, f := range t.families {
		peer := "ct reply " + f.name + " saddr"
		if c.Direction == rules.Ingress {
			peer = "ct original " + f.name + " saddr"
		}
		for _, m := range mapsOf(c, f) {
			tx.Add(m)
			if !strings.Contains(m.Type, "inet_service") {
				tx.Add(rule(c.Name, peer, "vmap @"+m.Name))
				continue
			}
			// The port is always that of the pod to which the connection goes.
			tx.Add(rule(c.Name, "ct direction original", peer, ". meta l4proto . th dport vmap @"+m.Name))
			tx.Add(rule(c.Name, "ct direction reply", peer, ". meta l4proto . th sport vmap @"+m.Name))
		}
	}
	tx.Add(rule(c.Name, verdict(c, c.Final)))
	for _, b := range c.Blocks {
		f := familyOf(b.Range.From())
		if !slices.Contains(t.families, f) {
			continue
		}
		for _, e := range portElements(c, blockPorts, blockPorts, f, rangeText(b.Range), b.Decision) {
			tx.Add(e)
		}
		if b.Decision.Other != c.Final {
			tx.Add(&knftables.Element{Map: classMap(c, blocks, f), Key: []string{rangeText(b.Range)}, Value: []string{verdict(c, b.Decision.Other)}})
		}
	}
}

// comment names the policies of a class for those who list the table, as far as there is room.
func comment(c *rules.Class) *string {
	text := strings.Join(c.Policies, ", ")
	if len(text) > knftables.CommentLengthMax {
		text = text[:knftables.CommentLengthMax-3] + "..."
	}
	return &text
}

func (t *Table) deleteClass(tx *knftables.Transaction, c *rules.Class) {
	delete(t.peers, c.Name)
	tx.Flush(&knftables.Chain{Name: c.Name})
	for _, f := range t.families {
		for _, m := range mapsOf(c, f) {
			tx.Delete(m)
		}
	}
	tx.Delete(&knftables.Chain{Name: c.Name})
	tx.Flush(&knftables.Chain{Name: dropChain(c.Name)})
	tx.Delete(&knftables.Chain{Name: dropChain(c.Name)})
	tx.Delete(&knftables.Counter{Name: c.Name})
}

// setPeer writes the decision about one address; nil is none.
func (t *Table) setPeer(tx *knftables.Transaction, c *rules.Class, ip netip.Addr, d *rules.Decision) {
	f := familyOf(ip)
	if !slices.Contains(t.families, f) {
		return
	}
	known := t.peers[c.Name]
	if old := known[ip]; old != nil {
		for _, e := range peerElements(c, f, ip, old) {
			tx.Delete(e)
		}
		delete(known, ip)
	}
	if d != nil {
		for _, e := range peerElements(c, f, ip, d) {
			tx.Add(e)
		}
		known[ip] = d
	}
}

func peerElements(c *rules.Class, f family, ip netip.Addr, d *rules.Decision) []*knftables.Element {
	elements := portElements(c, ports, ranges, f, ip.String(), d)
	if len(elements) > 0 && c.Elsewhere(ip).Uniform() && c.Elsewhere(ip).Other == d.Other {
		return elements // for everything else the lookups that follow give the same verdict
	}
	return append(elements, &knftables.Element{Map: classMap(c, peers, f), Key: []string{ip.String()}, Value: []string{verdict(c, d.Other)}})
}

// portElements are the ports that are decided otherwise than protocols without ports.
func portElements(c *rules.Class, single, several string, f family, address string, d *rules.Decision) []*knftables.Element {
	var out []*knftables.Element
	for i, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
		for _, r := range d.Exceptions(i) {
			kind, port := single, fmt.Sprint(r.First)
			if r.Last > r.First {
				kind, port = several, fmt.Sprintf("%d-%d", r.First, r.Last)
			}
			out = append(out, &knftables.Element{
				Map: classMap(c, kind, f), Key: []string{address, strings.ToLower(string(protocol)), port}, Value: []string{verdict(c, r.Verdict)},
			})
		}
	}
	return out
}

func verdict(c *rules.Class, v rules.Verdict) string {
	if v == rules.Allow {
		return "return"
	}
	return "goto " + dropChain(c.Name)
}

func rangeText(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	return r.From().String() + "-" + r.To().String()
}
