package scheduling

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// minSweep is the number of pods from which on those that no longer wait are removed.
const minSweep = 1024

// waiting has the pods that a plugin may have rejected, or could not be called for. The scheduler retries them when the
// cluster changes, but a change of the plugin is no change of the cluster. Some of the pods may have got a node since.
type waiting struct {
	known corelisters.PodLister

	mu    sync.Mutex
	pods  sets.Set[types.NamespacedName]
	sweep int // number of pods at which to remove some; 0: minSweep
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func (w *waiting) add(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = sets.New[types.NamespacedName]()
	}
	w.pods.Insert(nameOf(pod))
	if len(w.pods) < max(w.sweep, minSweep) {
		return
	}
	for name := range w.pods {
		if name != nameOf(pod) && w.unbound(name) == nil {
			w.pods.Delete(name)
		}
	}
	w.sweep = 2 * len(w.pods)
}

func (w *waiting) remove(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods.Delete(nameOf(pod))
}

// take removes all pods and returns those that still wait, as the scheduler's queue expects them.
func (w *waiting) take() map[string]*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]*corev1.Pod{}
	for name := range w.pods {
		if pod := w.unbound(name); pod != nil {
			out[name.String()] = pod
		}
	}
	w.pods, w.sweep = nil, 0
	return out
}

// unbound returns the pod; nil if it does not exist or has a node.
func (w *waiting) unbound(name types.NamespacedName) *corev1.Pod {
	pod, err := w.known.Pods(name.Namespace).Get(name.Name)
	if err != nil || pod.Spec.NodeName != "" {
		return nil
	}
	return pod
}
