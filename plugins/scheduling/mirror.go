package scheduling

import (
	"maps"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// mirror is what a process knows of the nodes. Updates are numbered, and each holds what has changed since the one before: when one is
// lost, the process refuses the next, and a new epoch begins with everything. So nothing has to be known about a call that failed.
type mirror struct {
	generation      uint64 // of the process
	epoch, sequence uint64
	needs           *pluginv1.NodeFields
	nodes           []mirrored        // by id
	ids             map[string]uint32 // by name; replaced, never changed: verdicts and scores keep it
	free            []uint32          // ids without a node
	round           uint64            // of updates
}

// mirrored is a node as it was last looked at.
type mirrored struct {
	name  string // empty: the id is free
	print fingerprint
	round uint64
}

// delta is what a request says of the nodes: what has changed, and which ones it asks about.
type delta struct {
	update *schedulingv1.Update
	nodes  []uint32
}

// fingerprint changes whenever a node does. The generation alone is not enough: upstream's snapshot keeps it when it
// assumes pods of a group.
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

// serve begins anew for another process, and for one that needs other fields.
func (m *mirror) serve(generation uint64, needs *pluginv1.NodeFields) {
	if m.epoch == 0 || generation != m.generation || !proto.Equal(needs, m.needs) {
		m.generation, m.needs = generation, needs
		m.begin()
	}
}

// begin starts an epoch. Epochs grow, so that a process can tell a call that comes late from a new beginning.
func (m *mirror) begin() {
	m.epoch++
	m.sequence, m.nodes, m.ids, m.free = 0, nil, nil, nil
}

// all updates the picture to exactly these nodes; the request asks about all of them.
func (m *mirror) all(infos []fwk.NodeInfo) delta {
	u, _ := m.next(infos)
	m.forget(u, len(infos))
	return delta{update: u}
}

// some updates the picture of some nodes, which the request asks about. There may be nodes that the process has never heard
// of, and it is told that nodes are gone only when it would otherwise keep more than there are.
func (m *mirror) some(infos, all []fwk.NodeInfo) delta {
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

// next makes the next update, with those of the nodes that have changed, and returns the ids of all of them.
func (m *mirror) next(infos []fwk.NodeInfo) (*schedulingv1.Update, []uint32) {
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

// take gives a node an id. Until index the node is not in ids.
func (m *mirror) take(name string, count int) uint32 {
	if n := len(m.free); n > 0 {
		id := m.free[n-1]
		m.free = m.free[:n-1]
		m.nodes[id] = mirrored{name: name}
		return id
	}
	if m.nodes == nil {
		m.nodes = make([]mirrored, 0, count)
	}
	m.nodes = append(m.nodes, mirrored{name: name})
	return uint32(len(m.nodes) - 1)
}

// index replaces ids when nodes have got or lost theirs since it was made.
func (m *mirror) index(before map[string]uint32) {
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

// forget removes the nodes that this round has not met, when more than count are known.
func (m *mirror) forget(u *schedulingv1.Update, count int) {
	if len(m.ids) <= count {
		return
	}
	ids := maps.Clone(m.ids)
	for id := range m.nodes {
		if node := &m.nodes[id]; node.name != "" && node.round != m.round {
			u.Removed = append(u.Removed, uint32(id))
			m.free = append(m.free, uint32(id))
			delete(ids, node.name)
			*node = mirrored{}
		}
	}
	m.ids = ids
}

// differ tells whether a node looks different to the process.
func (m *mirror) differ(before, now fingerprint) bool {
	if m.needs.GetPods() || m.needs.GetRequested() {
		return before != now
	}
	return before.node != now.node
}

// verdicts reads an answer about all nodes.
func (m *mirror) verdicts(answer *schedulingv1.FilterResponse, d *pluginv1.SchedulingDescription) (*verdicts, error) {
	v := &verdicts{ids: m.ids, rejected: make([]uint32, len(m.nodes)), reasons: []string{""}, unresolvable: d.GetUnresolvable()}
	for _, r := range answer.GetRejected() {
		if r.GetReason() == "" {
			return nil, badAnswer("it refused nodes without a reason")
		}
		v.reasons = append(v.reasons, r.GetReason())
		for _, id := range r.GetNodes() {
			if int(id) >= len(m.nodes) || m.nodes[id].name == "" {
				return nil, badAnswer("it refused node %d, which there is not", id)
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

// scores reads an answer about nodes.
func (m *mirror) scores(answer *schedulingv1.ScoreResponse, nodes []uint32) (*scores, error) {
	given := answer.GetScores()
	if len(given) != len(nodes) {
		return nil, badAnswer("it gave %d scores for %d nodes", len(given), len(nodes))
	}
	out := &scores{ids: m.ids, values: make([]uint8, len(m.nodes))}
	for id := range out.values {
		out.values[id] = noScore
	}
	for i, score := range given {
		if int64(score) > fwk.MaxScore {
			return nil, badAnswer("it gave node %s the score %d: want 0 to %d", m.nodes[nodes[i]].name, score, fwk.MaxScore)
		}
		out.values[nodes[i]] = score
	}
	return out, nil
}
