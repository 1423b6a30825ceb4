// Package placement reports for each node why the scheduler would not put a pod there. It calls upstream's own filter
// plugins, with their default arguments, with a snapshot of the nodes and pods that the caller may read.
//
// Not called: the plugins that need the cluster's volumes, devices and their drivers, whose verdict stands in the
// scheduler's message, and those of `kubelith server`, which only it can call.
package placement

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"kubelith.io/kubelith/why"
)

// asked are the plugins in the order in which a person would fix what they find.
var asked = [...]string{names.NodeUnschedulable, names.NodeName, names.NodeAffinity, names.TaintToleration, names.NodePorts,
	names.NodeResourcesFit, names.InterPodAffinity, names.PodTopologySpread}

// Verdicts returns, for each node, one verdict of each plugin that refuses the pod there, or one without a plugin if
// none does. client reads namespaces only, where an affinity selects them by label.
//
// Source: findNodesThatFitPod in k8s.io/kubernetes/pkg/scheduler/schedule_one.go
func Verdicts(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, nodes []corev1.Node, pods []corev1.Pod) ([]why.Verdict, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	metrics.Register()
	snapshot := snapshotOf(nodes, pods)
	// Never started: the listers that plugins take from it are filled here, or not needed to filter.
	factory := informers.NewSharedInformerFactory(client, 0)
	defer factory.Shutdown()
	handle, err := frameworkruntime.NewFramework(ctx, nil, nil, frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithInformerFactory(factory), frameworkruntime.WithClientSet(client))
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	if err := addNamespaces(ctx, client, factory, pod); err != nil {
		return nil, err
	}
	args, err := defaultArgs()
	if err != nil {
		return nil, err
	}
	infos, err := snapshot.NodeInfos().List()
	if err != nil {
		return nil, err
	}
	found := map[string][]why.Verdict{}
	registry, state := plugins.NewInTreeRegistry(), framework.NewCycleState()
	for _, name := range asked {
		plugin, err := registry[name](ctx, args[name], handle)
		if err != nil {
			return nil, fmt.Errorf("scheduler plugin %s: %w", name, err)
		}
		for node, status := range filter(ctx, plugin, state, pod, infos) {
			if !status.IsRejected() {
				return nil, fmt.Errorf("scheduler plugin %s on node %s: %w", name, node, status.AsError())
			}
			found[node] = append(found[node], why.Verdict{Node: node, Plugin: name, Reasons: status.Reasons()})
		}
	}
	var all []why.Verdict
	for _, n := range nodes {
		if len(found[n.Name]) == 0 {
			all = append(all, why.Verdict{Node: n.Name})
		}
		all = append(all, found[n.Name]...)
	}
	return all, nil
}

// filter returns the status of each node that a plugin refuses.
func filter(ctx context.Context, plugin fwk.Plugin, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) map[string]*fwk.Status {
	refused := map[string]*fwk.Status{}
	if p, ok := plugin.(fwk.PreFilterPlugin); ok {
		only, status := p.PreFilter(ctx, state, pod, nodes)
		if status.IsSkip() {
			return nil
		}
		for _, n := range nodes {
			name := n.Node().Name
			if !status.IsSuccess() {
				refused[name] = status
			} else if !only.AllNodes() && !only.NodeNames.Has(name) {
				refused[name] = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match the requested node")
			}
		}
	}
	p, ok := plugin.(fwk.FilterPlugin)
	if !ok {
		return refused
	}
	for _, n := range nodes {
		if name := n.Node().Name; refused[name] == nil {
			if status := p.Filter(ctx, state, pod, n); !status.IsSuccess() {
				refused[name] = status
			}
		}
	}
	return refused
}

// snapshotOf is the scheduler's view: pods that have ended use nothing, and those of a node that is gone do not count.
func snapshotOf(nodes []corev1.Node, pods []corev1.Pod) *cache.Snapshot {
	all, known := make([]*corev1.Node, len(nodes)), map[string]bool{}
	for i := range nodes {
		all[i], known[nodes[i].Name] = &nodes[i], true
	}
	var running []*corev1.Pod
	for i := range pods {
		if phase := pods[i].Status.Phase; known[pods[i].Spec.NodeName] && phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			running = append(running, &pods[i])
		}
	}
	return cache.NewSnapshot(running, all)
}

// defaultArgs are the arguments of upstream's default profile.
func defaultArgs() (map[string]runtime.Object, error) {
	config, err := latest.Default()
	if err != nil {
		return nil, err
	}
	args := map[string]runtime.Object{}
	for _, c := range config.Profiles[0].PluginConfig {
		args[c.Name] = c.Args
	}
	return args, nil
}

// addNamespaces fills the lister by which affinities select namespaces.
func addNamespaces(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory, pod *corev1.Pod) error {
	indexer := factory.Core().V1().Namespaces().Informer().GetIndexer()
	if !selectsNamespaces(pod) {
		return nil
	}
	all, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		if err := indexer.Add(&all.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// selectsNamespaces reports whether an affinity of the pod has a namespaceSelector.
func selectsNamespaces(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	if a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	if a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, t := range terms {
		if t.NamespaceSelector != nil {
			return true
		}
	}
	return false
}
