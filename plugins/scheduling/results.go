package scheduling

import fwk "k8s.io/kube-scheduler/framework"

// filterResults are a plugin's results in one scheduling cycle, for the nodes at its start. They never change, so that
// clones of the cycle's state, on which preemption works, share them.
type filterResults struct {
	ids          map[string]uint32 // by the node's name
	rejected     []uint32          // by id: index of the reason; 0: none
	reasons      []string
	prints       []fingerprint // by id; nil: results do not depend on the node's pods
	unresolvable bool
}

var _, _ fwk.StateData = (*filterResults)(nil), (*scores)(nil)

// Clone implements fwk.StateData.
func (v *filterResults) Clone() fwk.StateData { return v }

// of returns why a node is rejected; empty: it is not. A result for a node that has other pods now is not known.
func (v *filterResults) of(info fwk.NodeInfo) (reason string, known bool) {
	id, ok := v.ids[info.Node().Name]
	if !ok || (v.prints != nil && v.prints[id] != fingerprintOf(info)) {
		return "", false
	}
	return v.reasons[v.rejected[id]], true
}

// rejectsAny reports whether any node is rejected.
func (v *filterResults) rejectsAny() bool { return v != nil && len(v.reasons) > 1 }

// scores are a plugin's scores in one scheduling cycle.
type scores struct {
	ids    map[string]uint32
	values []uint8 // by id
}

// noScore marks a node that was not to be scored.
const noScore = 255

// Clone implements fwk.StateData.
func (s *scores) Clone() fwk.StateData { return s }

func (s *scores) of(info fwk.NodeInfo) (int64, bool) {
	id, ok := s.ids[info.Node().Name]
	if !ok || s.values[id] == noScore {
		return 0, false
	}
	return int64(s.values[id]), true
}
