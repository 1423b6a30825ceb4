package scheduling

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// profile has the plugins of one scheduler profile. The framework calls them one after the other; the first one called
// calls all of them at the same time, so that a pod waits for the slowest plugin, not for the sum.
type profile struct {
	mu      sync.Mutex
	members []*plugin
}

func (t *profile) join(p *plugin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members = append(t.members, p)
}

func (t *profile) all() []*plugin {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.members
}

// round has the answers of all plugins about one pod and some nodes, in the state of its cycle.
type round[T any] struct {
	pod     *corev1.Pod
	nodes   []fwk.NodeInfo
	answers map[*plugin]*answer[T]
}

type answer[T any] struct {
	done  chan struct{}
	value T
	err   error
	taken bool
}

// Clone implements fwk.StateData.
func (r *round[T]) Clone() fwk.StateData { return r }

// serves reports whether the round has p's answer to the question. Each answer is used once: if the framework asks
// again, the plugin is called again.
func (r *round[T]) serves(p *plugin, pod *corev1.Pod, nodes []fwk.NodeInfo) bool {
	a := r.answers[p]
	return a != nil && !a.taken && r.pod == pod && len(r.nodes) == len(nodes) && len(nodes) > 0 && &r.nodes[0] == &nodes[0]
}

// ask returns what call returns for p.
func ask[T any](p *plugin, state fwk.CycleState, key fwk.StateKey, pod *corev1.Pod, nodes []fwk.NodeInfo, call func(*plugin) (T, error)) (T, error) {
	members := p.profile.all()
	if len(members) < 2 {
		return call(p)
	}
	var now *round[T]
	if data, err := state.Read(key); err == nil {
		now = data.(*round[T])
	}
	if now == nil || !now.serves(p, pod, nodes) {
		now = &round[T]{pod: pod, nodes: nodes, answers: map[*plugin]*answer[T]{}}
		for _, m := range members {
			a := &answer[T]{done: make(chan struct{})}
			now.answers[m] = a
			go func() { // ends with the plugin's timeout at the latest
				defer close(a.done)
				a.value, a.err = call(m)
			}()
		}
		state.Write(key, now)
	}
	a := now.answers[p]
	a.taken = true
	<-a.done
	return a.value, a.err
}
