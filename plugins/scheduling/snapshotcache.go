package scheduling

import (
	"maps"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// snapshotCache tracks which nodes a process has been sent. Updates are numbered, and each contains the changes since
// the previous one. If one is lost, the process refuses the next, and a new epoch starts with all nodes, so it does not
// matter how far a failed call got.
type snapshotCache struct {
	generation      uint64 // of the process
	epoch, sequence uint64
	needs           *pluginv1.NodeFields
	nodes           []cachedNode      // by id
	ids             map[string]uint32 // by name; replaced, never changed, as results share it
	free            []uint32          // ids without a node
	round           uint64            // of updates
}

// cachedNode is a node as last sent.
type cachedNode struct {
	name  string // empty: the id is free
	print fingerprint
	round uint64
}

// delta is the part of a request about nodes: what has changed, and which nodes to filter or score; none: all.
type delta struct {
	update *schedulingv1.Update
	nodes  []uint32
}

// fingerprint changes whenever a node does. The generation alone does not: upstream's snapshot keeps it when it assumes
// pods of a group.
type fingerprint struct {
	node       *corev1.Node // objects of informers are replaced, never changed
	generation int64
	pods       int
	milliCPU   int64
	memory     int64
}

func fingerprintOf(info fwk.NodeInfo) fingerprint {
	requested := info.GetRequested()
	return fingerprint{info.Node(), info.GetGeneration(), len(info.GetPods()), requested.GetMilliCPU(), requested.GetMemory()}
}

// serve starts a new epoch if the process is another one or needs other fields.
func (m *snapshotCache) serve(generation uint64, needs *pluginv1.NodeFields) {
	if m.epoch == 0 || generation != m.generation || !proto.Equal(needs, m.needs) {
		m.generation, m.needs = generation, needs
		m.begin()
	}
}

// begin starts an epoch. Epochs increase, so that a process can tell a late call from a new epoch.
func (m *snapshotCache) begin() {
	m.epoch++
	m.sequence, m.nodes, m.ids, m.free = 0, nil, nil, nil
}

// all returns the delta after which the process knows exactly these nodes, for a request about all of them.
func (m *snapshotCache) all(infos []fwk.NodeInfo) delta {
	u, _ := m.next(infos)
	m.forget(u, len(infos))
	return delta{update: u}
}

// some returns the delta for a request about some nodes. Other nodes may be unknown to the process. It learns of
// removed nodes only if it would otherwise keep more nodes than exist.
func (m *snapshotCache) some(infos, all []fwk.NodeInfo) delta {
	u, ids := m.next(infos)
	if len(m.ids) > len(all) {
		for _, info := range all {
			if id, ok := m.ids[info.Node().Name]; ok {
				m.nodes[id].round = m.round
			}
		}
		m.forget(u, len(all))
	}
	return delta{u, ids}
}

// next returns the next update, with those nodes that have changed, and the ids of all of them.
func (m *snapshotCache) next(infos []fwk.NodeInfo) (*schedulingv1.Update, []uint32) {
	m.round++
	m.sequence++
	u := &schedulingv1.Update{Epoch: m.epoch, Sequence: m.sequence}
	ids := make([]uint32, len(infos))
	known := m.ids
	for i, info := range infos {
		print := fingerprintOf(info)
		id, ok := known[info.Node().Name]
		if !ok {
			id = m.take(info.Node().Name, len(infos))
		}
		node := &m.nodes[id]
		if !ok || m.differ(node.print, print) {
			message := nodeMessage(info, m.needs)
			message.Id = id
			u.Changed = append(u.Changed, message)
		}
		node.print, node.round = print, m.round
		ids[i] = id
	}
	m.index(known)
	return u, ids
}

// take assigns an id to a node. The node is in ids only after index.
func (m *snapshotCache) take(name string, count int) uint32 {
	if n := len(m.free); n > 0 {
		id := m.free[n-1]
		m.free = m.free[:n-1]
		m.nodes[id] = cachedNode{name: name}
		return id
	}
	if m.nodes == nil {
		m.nodes = make([]cachedNode, 0, count)
	}
	m.nodes = append(m.nodes, cachedNode{name: name})
	return uint32(len(m.nodes) - 1)
}

// index replaces ids if nodes were added or removed since before.
func (m *snapshotCache) index(before map[string]uint32) {
	count := len(m.nodes) - len(m.free)
	if count == len(before) {
		return
	}
	ids := make(map[string]uint32, count)
	for id := range m.nodes {
		if name := m.nodes[id].name; name != "" {
			ids[name] = uint32(id)
		}
	}
	m.ids = ids
}

// forget removes the nodes that this round has not seen, if more than count are known.
func (m *snapshotCache) forget(u *schedulingv1.Update, count int) {
	if len(m.ids) <= count {
		return
	}
	ids := maps.Clone(m.ids)
	for id := range m.nodes {
		if node := &m.nodes[id]; node.name != "" && node.round != m.round {
			u.Removed = append(u.Removed, uint32(id))
			m.free = append(m.free, uint32(id))
			delete(ids, node.name)
			*node = cachedNode{}
		}
	}
	m.ids = ids
}

// differ reports whether a node has changed in a field that the process needs.
func (m *snapshotCache) differ(before, now fingerprint) bool {
	if m.needs.GetPods() || m.needs.GetRequested() {
		return before != now
	}
	return before.node != now.node
}

// filterResults checks and converts the answer about all nodes.
func (m *snapshotCache) filterResults(answer *schedulingv1.FilterResponse, d *pluginv1.SchedulingDescription) (*filterResults, error) {
	v := &filterResults{ids: m.ids, rejected: make([]uint32, len(m.nodes)), reasons: []string{""}, unresolvable: d.GetUnresolvable()}
	for _, r := range answer.GetRejected() {
		if r.GetReason() == "" {
			return nil, badAnswer("it rejected nodes without a reason")
		}
		v.reasons = append(v.reasons, r.GetReason())
		for _, id := range r.GetNodes() {
			if int(id) >= len(m.nodes) || m.nodes[id].name == "" {
				return nil, badAnswer("it rejected node %d, which does not exist", id)
			}
			v.rejected[id] = uint32(len(v.reasons) - 1)
		}
	}
	if d.GetFilterUsesPods() {
		v.prints = make([]fingerprint, len(m.nodes))
		for id := range m.nodes {
			v.prints[id] = m.nodes[id].print
		}
	}
	return v, nil
}

// scores checks and converts the answer about nodes.
func (m *snapshotCache) scores(answer *schedulingv1.ScoreResponse, nodes []uint32) (*scores, error) {
	given := answer.GetScores()
	if len(given) != len(nodes) {
		return nil, badAnswer("it returned %d scores for %d nodes", len(given), len(nodes))
	}
	out := &scores{ids: m.ids, values: make([]uint8, len(m.nodes))}
	for id := range out.values {
		out.values[id] = noScore
	}
	for i, score := range given {
		if int64(score) > fwk.MaxScore {
			return nil, badAnswer("it returned the score %[2]d for node %[1]s, not 0 to %[3]d", m.nodes[nodes[i]].name, score, fwk.MaxScore)
		}
		out.values[nodes[i]] = score
	}
	return out, nil
}
