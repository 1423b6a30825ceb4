package scheduling

import fwk "k8s.io/kube-scheduler/framework"

// verdicts are a plugin's of one scheduling cycle, about the nodes as they were when it began. They are never changed, so
// that clones of the cycle's state, in which preemption tries its ideas, share them.
type verdicts struct {
	ids          map[string]uint32 // by the node's name
	rejected     []uint32          // by id: index of the reason; 0: none
	reasons      []string
	prints       []fingerprint // by id; nil: a verdict holds whatever pods are on the node
	unresolvable bool
}

var _, _ fwk.StateData = (*verdicts)(nil), (*scores)(nil)

// Clone implements fwk.StateData.
func (v *verdicts) Clone() fwk.StateData { return v }

// of returns why a node is refused, or "". A verdict about a node that has other pods now is none.
func (v *verdicts) of(info fwk.NodeInfo) (reason string, known bool) {
	id, ok := v.ids[info.Node().Name]
	if !ok || (v.prints != nil && v.prints[id] != fingerprintOf(info)) {
		return "", false
	}
	return v.reasons[v.rejected[id]], true
}

// refuse tells whether there is a node that they refuse.
func (v *verdicts) refuse() bool { return v != nil && len(v.reasons) > 1 }

// scores are a plugin's of one scheduling cycle.
type scores struct {
	ids    map[string]uint32
	values []uint8 // by id
}

// noScore stands for a node that was not asked about.
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
