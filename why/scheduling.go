package why

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/storage/volume"
)

// plugin is what the refusal of a scheduler plugin means.
type plugin struct {
	code Code
	// short is the refusal in few words, suspicion what a person would think first, remedy what to do.
	short, suspicion, remedy string
}

// plugins are named as upstream names them.
//
// Source: k8s.io/kubernetes/pkg/scheduler/framework/plugins/names
func plugins() map[string]plugin {
	return map[string]plugin{
		"NodeUnschedulable": {NodesCordoned, "cordoned", "the nodes are cordoned",
			"When the maintenance is done: kubelith kubectl uncordon NODE."},
		"NodeName": {NodeSelectorMismatch, "not the node of spec.nodeName", "", "Correct nodeName."},
		"NodeAffinity": {NodeSelectorMismatch, "without the labels that it asks for", "no node has the labels that it asks for",
			"Label a node, or change nodeSelector or affinity.nodeAffinity."},
		"TaintToleration": {TaintNotTolerated, "tainted", "a taint keeps it away",
			"Add a toleration to the pod, or remove the taint: kubelith kubectl taint node NODE KEY-."},
		"NodePorts": {HostPortTaken, "host port in use", "", "Use a Service instead of hostPort, another port, or another node."},
		"NodeResourcesFit": {InsufficientResources, "not enough room", "the nodes are full",
			"Request less, scale down what uses the nodes, or add a node."},
		"InterPodAffinity": {PodAntiAffinity, "against a pod affinity", "",
			"Change affinity.podAffinity or podAntiAffinity (preferred instead of required), or add a node."},
		"PodTopologySpread": {TopologySpread, "against its topologySpreadConstraints", "",
			"Raise maxSkew, use whenUnsatisfiable: ScheduleAnyway, or add nodes in other domains."},
		"VolumeBinding": {VolumePlacement, "out of reach of its volumes", "",
			"The volume is on another node: make room there, or move the data."},
	}
}

// podUnscheduled explains a pod that has no node.
func podUnscheduled(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	if pod.Spec.NodeName != "" {
		return nil
	}
	o, c := podObject(pod), podCondition(pod, corev1.PodScheduled)
	if len(pod.Spec.SchedulingGates) > 0 {
		var gates []string
		for _, g := range pod.Spec.SchedulingGates {
			gates = append(gates, g.Name)
		}
		names := strings.Join(gates, ", ")
		return broken(SchedulingGated, fmt.Sprintf("%s is held back by its scheduling gate %s: its owner has not removed it", o, names)).
			since(pod.CreationTimestamp).
			saw(o.String()+" .spec.schedulingGates", names).sawCondition(pod, corev1.PodScheduled).
			not(InsufficientResources, "no node has room", "the scheduler ignores a pod with a gate").
			do("Find the controller that owns the gate, and read its log. To schedule the pod without it:",
				kubectl(pod.Namespace, `patch pod %s --type=json -p '[{"op":"remove","path":"/spec/schedulingGates"}]'`, pod.Name))
	}
	if f := podClaims(ctx, r, pod); f != nil {
		return f
	}
	if c == nil || c.Status != corev1.ConditionFalse {
		return r.notLookedAt(pod)
	}
	if node := pod.Status.NominatedNodeName; node != "" {
		return found(Progressing, InProgress, fmt.Sprintf("in progress: pods of lower priority are being preempted on node %s for %s", node, o)).
			since(c.LastTransitionTime).saw(o.String()+" .status.nominatedNodeName", node).sawCondition(pod, corev1.PodScheduled)
	}
	f := r.placed(ctx, pod, c)
	return f.since(c.LastTransitionTime).sawCondition(pod, corev1.PodScheduled)
}

// notLookedAt explains a pod that no scheduler has handled.
func (r *Reader) notLookedAt(pod *corev1.Pod) *Finding {
	o, name := podObject(pod), pod.Spec.SchedulerName
	where := o.String() + " .spec.schedulerName"
	if r.age(pod.CreationTimestamp) < fresh {
		return found(Progressing, InProgress, fmt.Sprintf("in progress: %s waits for the scheduler %s", o, name)).since(pod.CreationTimestamp).
			sawAt(o.String()+" .metadata.creationTimestamp", "created", pod.CreationTimestamp).saw(where, name)
	}
	f := broken(SchedulerUnknown, fmt.Sprintf("no scheduler named %s takes %s: it does not run, or the name is wrong", name, o))
	if name == corev1.DefaultSchedulerName {
		f = broken(SchedulerSilent, fmt.Sprintf("the scheduler has not handled %s for %s: it does not run, or hangs",
			o, ago(r.age(pod.CreationTimestamp))))
		f.do("kube-scheduler runs in kubelith server: its log has the lines of the component scheduler.")
	} else {
		f.do(recreate(pod, fmt.Sprintf("Correct schedulerName (the built-in one is %s)", corev1.DefaultSchedulerName)))
	}
	untried := fmt.Sprintf("no PodScheduled: no scheduler has tried it in the %s since its creation", ago(r.age(pod.CreationTimestamp)))
	return f.since(pod.CreationTimestamp).saw(where, name).
		sawAt(o.String()+" .status.conditions", untried, pod.CreationTimestamp).
		not(InsufficientResources, "no node has room", "no scheduler has tried to place the pod")
}

// placed explains a pod that the scheduler refuses, node by node.
func (r *Reader) placed(ctx context.Context, pod *corev1.Pod, c *corev1.PodCondition) *Finding {
	o := podObject(pod)
	said := func(f *Finding) *Finding {
		return f.do("The scheduler tries again when something changes that could help.")
	}
	nodes, err := r.Nodes(ctx)
	var pods []corev1.Pod
	if err == nil {
		pods, err = r.Pods(ctx, metav1.NamespaceAll, "")
	}
	if err != nil || r.Placement == nil {
		return said(broken(codeOfMessage(c.Message), fmt.Sprintf("no node takes %s: %s", o, schedulerSays(c.Message)))).
			saw("the nodes", "not compared: that needs the right to list nodes and all pods")
	}
	if len(nodes) == 0 {
		return broken(NoNodes, fmt.Sprintf("no node takes %s: the cluster has none", o)).saw("LIST nodes", "empty").
			do("Add a machine: kubelith agent, see docs/nodes.md.")
	}
	verdicts, err := r.Placement(ctx, r.Client, pod, nodes, pods)
	if err != nil {
		return said(broken(codeOfMessage(c.Message), fmt.Sprintf("no node takes %s: %s", o, schedulerSays(c.Message)))).
			saw("the nodes", "not compared: "+err.Error())
	}
	verdicts = r.addVolumes(ctx, pod, nodes, verdicts)
	return r.byVerdicts(pod, c, nodes, pods, verdicts)
}

// byVerdicts chooses the cause: the plugin that refuses the nodes which nothing else refuses.
func (r *Reader) byVerdicts(pod *corev1.Pod, c *corev1.PodCondition, nodes []corev1.Node, pods []corev1.Pod, verdicts []Verdict) *Finding {
	o := podObject(pod)
	verdicts = withoutCordonTaints(pod, nodes, verdicts)
	byNode := map[string][]Verdict{}
	for _, v := range verdicts {
		if v.Plugin == "" {
			f := broken(SchedulerRefuses, fmt.Sprintf("the scheduler refuses %s: %s", o, schedulerSays(c.Message)))
			return f.saw("node/"+v.Node, "would take the pod by the rules of upstream's scheduler: "+
				"a scheduling plugin, an extender or another configuration refuses it, or things have changed since").
				do("If the message names a plugin: run kubelith plugin list, and read the plugin's log.",
					"If it does not: the scheduler tries again soon, ask again.")
		}
		byNode[v.Node] = append(byNode[v.Node], v)
	}
	// Of the nodes that the pod may use by its own choice, those that come nearest decide: there the fewest plugins
	// refuse.
	mine := func(all []Verdict) bool {
		return !slices.ContainsFunc(all, func(v Verdict) bool { return v.Plugin == "NodeAffinity" || v.Plugin == "NodeName" })
	}
	chosen := slices.DeleteFunc(slices.Collect(maps.Values(byNode)), func(all []Verdict) bool { return !mine(all) })
	if len(chosen) == 0 {
		chosen = slices.Collect(maps.Values(byNode))
	}
	fewest, near := len(plugins())+1, map[string]int{}
	for _, all := range chosen {
		fewest = min(fewest, len(all))
	}
	for _, all := range chosen {
		if len(all) == fewest {
			for _, v := range all {
				near[v.Plugin]++
			}
		}
	}
	names := slices.Sorted(maps.Keys(near))
	var f *Finding
	if len(names) == 1 {
		f = r.onePlugin(pod, names[0], nodes, byNode)
	} else {
		var parts []string
		for _, n := range names {
			parts = append(parts, fmt.Sprintf("%s on %d of %d", plugins()[n].short, near[n], len(nodes)))
		}
		f = broken(SchedulingMixed, fmt.Sprintf("no node takes %s, for more than one reason: %s", o, strings.Join(parts, "; ")))
		for _, n := range names {
			f.do(plugins()[n].remedy)
		}
	}
	for i, node := range nodes {
		if i == 20 {
			f.saw("further nodes", fmt.Sprintf("%d", len(nodes)-i))
			break
		}
		var parts []string
		for _, v := range byNode[node.Name] {
			parts = append(parts, fmt.Sprintf("%s: %s", v.Plugin, r.detail(pod, &node, pods, v)))
		}
		f.saw("node/"+node.Name, strings.Join(parts, "; "))
	}
	for _, name := range []string{"NodeResourcesFit", "TaintToleration", "NodeAffinity", "NodeUnschedulable"} {
		if near[name] == 0 {
			f.not(plugins()[name].code, plugins()[name].suspicion,
				fmt.Sprintf("the scheduler's plugin %s refuses none of the nodes that come nearest", name))
		}
	}
	return f
}

// onePlugin is the cause when one plugin decides.
func (r *Reader) onePlugin(pod *corev1.Pod, name string, nodes []corev1.Node, byNode map[string][]Verdict) *Finding {
	o, p := podObject(pod), plugins()[name]
	has := func(what string) string {
		if len(nodes) == 1 {
			return "the only node has " + what
		}
		return "every node that it may use has " + what
	}
	hasNot := func(what string) string {
		if len(nodes) == 1 {
			return "the only node has not " + what
		}
		return "no node that it may use has " + what
	}
	code, cause := p.code, ""
	switch name {
	case "NodeResourcesFit":
		cause = fmt.Sprintf("%s requests %s, and %s", o, r.requests(pod, insufficient(byNode)), hasNot("that much free"))
	case "NodeAffinity":
		cause = fmt.Sprintf("%s asks for the labels of a node by its affinity, and %s", o, hasNot("them"))
		if selector := pod.Spec.NodeSelector; len(selector) > 0 {
			cause = fmt.Sprintf("%s asks for a node with %s, and %s", o, labelText(selector), hasNot("that"))
		}
	case "TaintToleration":
		cause = fmt.Sprintf("%s does not tolerate the taints of nodes, and %s", o, has("one: "+strings.Join(taints(pod, nodes), ", ")))
	case "NodeUnschedulable":
		cause = fmt.Sprintf("%s finds no node: %s been cordoned", o, has(""))
	case "NodePorts":
		cause = fmt.Sprintf("%s asks for the host port %s, and %s", o, hostPorts(pod), has("it in use"))
	case "InterPodAffinity":
		cause = fmt.Sprintf("%s may not run next to certain pods (podAntiAffinity), and %s", o, has("one"))
		for _, v := range slices.Concat(slices.Collect(maps.Values(byNode))...) {
			// Source: k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity/filtering.go
			if v.Plugin == name && slices.Contains(v.Reasons, "node(s) didn't match pod affinity rules") {
				code = PodAffinityUnmet
				cause = fmt.Sprintf("%s must run next to certain pods (podAffinity), and %s", o, hasNot("them"))
			}
		}
	case "PodTopologySpread":
		cause = fmt.Sprintf("%s must be spread (topologySpreadConstraints), and %s", o, has("too many of its kind, or no label of the topology"))
	default:
		cause = fmt.Sprintf("no node takes %s: %s", o, p.short)
	}
	return broken(code, cause).do(p.remedy)
}

// insufficient are the resources of which nodes have too little.
func insufficient(byNode map[string][]Verdict) []corev1.ResourceName {
	short := map[corev1.ResourceName]bool{}
	for _, all := range byNode {
		for _, v := range all {
			if v.Plugin != "NodeResourcesFit" {
				continue
			}
			for _, reason := range v.Reasons {
				// Source: fitsRequest in k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources/fit.go
				if name, ok := strings.CutPrefix(reason, "Insufficient "); ok {
					short[corev1.ResourceName(name)] = true
				} else if reason == "Too many pods" {
					short[corev1.ResourcePods] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(short))
}

// requests is what a pod requests of some resources.
func (r *Reader) requests(pod *corev1.Pod, names []corev1.ResourceName) string {
	all, parts := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}), []string{}
	for _, name := range names {
		if name == corev1.ResourcePods {
			parts = append(parts, "a place for one more pod")
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %s", amount(all[name]), name))
	}
	return firstOf(strings.Join(parts, " and "), "resources")
}

// amount is a quantity as a person writes it: not 1k, but 1000.
func amount(q resource.Quantity) string {
	if q.Format == resource.DecimalSI && q.MilliValue()%1000 == 0 {
		return fmt.Sprint(q.Value())
	}
	return q.String()
}

// free is what a node has left of a resource.
func free(node *corev1.Node, pods []corev1.Pod, name corev1.ResourceName) (left, total resource.Quantity) {
	total = node.Status.Allocatable[name].DeepCopy()
	left = total.DeepCopy()
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != node.Name || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		if name == corev1.ResourcePods {
			left.Sub(*resource.NewQuantity(1, resource.DecimalSI))
			continue
		}
		left.Sub(resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})[name])
	}
	return left, total
}

// detail is a verdict with the numbers and names behind it.
func (r *Reader) detail(pod *corev1.Pod, node *corev1.Node, pods []corev1.Pod, v Verdict) string {
	reasons := strings.Join(v.Reasons, ", ")
	switch v.Plugin {
	case "NodeResourcesFit":
		var parts []string
		for _, name := range insufficient(map[string][]Verdict{node.Name: {v}}) {
			left, total := free(node, pods, name)
			parts = append(parts, fmt.Sprintf("%s of %s %s free", amount(left), amount(total), name))
		}
		return fmt.Sprintf("asks for %s; %s", r.requests(pod, insufficient(map[string][]Verdict{node.Name: {v}})), strings.Join(parts, ", "))
	case "TaintToleration":
		return fmt.Sprintf("taint %s", strings.Join(taints(pod, []corev1.Node{*node}), ", "))
	case "NodeAffinity":
		var missing []string
		for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
			if got, ok := node.Labels[key]; !ok {
				missing = append(missing, "no label "+key)
			} else if got != pod.Spec.NodeSelector[key] {
				missing = append(missing, fmt.Sprintf("label %s=%s", key, got))
			}
		}
		return firstOf(strings.Join(missing, ", "), reasons)
	case "NodePorts":
		for i := range pods {
			if p := &pods[i]; p.Spec.NodeName == node.Name && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && sharesPort(p, pod) {
				return fmt.Sprintf("host port %s is of pod/%s in namespace %s", hostPorts(pod), p.Name, p.Namespace)
			}
		}
	}
	return reasons
}

// withoutCordonTaints drops the verdicts that a cordoned node is tainted, where its only taint is the one that says so.
//
// Source: k8s.io/kubernetes/pkg/controller/nodelifecycle sets corev1.TaintNodeUnschedulable on cordoned nodes
func withoutCordonTaints(pod *corev1.Pod, nodes []corev1.Node, verdicts []Verdict) []Verdict {
	cordoned := map[string]bool{}
	for _, n := range nodes {
		all := taints(pod, []corev1.Node{n})
		cordoned[n.Name] = n.Spec.Unschedulable && len(all) == 1 && strings.HasPrefix(all[0], corev1.TaintNodeUnschedulable+":")
	}
	return slices.DeleteFunc(slices.Clone(verdicts), func(v Verdict) bool { return v.Plugin == "TaintToleration" && cordoned[v.Node] })
}

// taints are the taints of nodes that a pod does not tolerate.
func taints(pod *corev1.Pod, nodes []corev1.Node) []string {
	var all []string
	for _, n := range nodes {
		for _, t := range n.Spec.Taints {
			tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(tol corev1.Toleration) bool { return tolerates(tol, t) })
			if tolerated || t.Effect == corev1.TaintEffectPreferNoSchedule {
				continue
			}
			if text := t.ToString(); !slices.Contains(all, text) {
				all = append(all, text)
			}
		}
	}
	return all
}

// tolerates leaves out the comparisons by number, which are behind a gate: then a taint too many is shown.
func tolerates(tol corev1.Toleration, t corev1.Taint) bool {
	if tol.Effect != "" && tol.Effect != t.Effect || tol.Key != "" && tol.Key != t.Key {
		return false
	}
	return tol.Operator == corev1.TolerationOpExists || (tol.Operator == "" || tol.Operator == corev1.TolerationOpEqual) && tol.Value == t.Value
}

func ports(pod *corev1.Pod) []corev1.ContainerPort {
	var all []corev1.ContainerPort
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				all = append(all, p)
			}
		}
	}
	return all
}

func hostPorts(pod *corev1.Pod) string {
	var all []string
	for _, p := range ports(pod) {
		all = append(all, fmt.Sprint(p.HostPort))
	}
	return strings.Join(all, ", ")
}

func sharesPort(a, b *corev1.Pod) bool {
	return slices.ContainsFunc(ports(a), func(p corev1.ContainerPort) bool {
		return slices.ContainsFunc(ports(b), func(q corev1.ContainerPort) bool { return p.HostPort == q.HostPort && p.Protocol == q.Protocol })
	})
}

func labelText(labels map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, key+"="+labels[key])
	}
	return strings.Join(all, ", ")
}

// addVolumes adds the verdict of volumes that are bound to one node, which Placement does not have.
//
// Source: FindPodVolumes in k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding/binder.go
func (r *Reader) addVolumes(ctx context.Context, pod *corev1.Pod, nodes []corev1.Node, verdicts []Verdict) []Verdict {
	for _, v := range pod.Spec.Volumes {
		claim, err := r.Claim(ctx, pod.Namespace, claimName(pod, v))
		if claimName(pod, v) == "" || err != nil || claim.Spec.VolumeName == "" {
			continue
		}
		pv, err := r.Volume(ctx, claim.Spec.VolumeName)
		if err != nil || pv.Spec.NodeAffinity == nil {
			continue
		}
		for _, n := range nodes {
			if volume.CheckNodeAffinity(pv, n.Labels) == nil {
				continue
			}
			verdicts = slices.DeleteFunc(verdicts, func(v Verdict) bool { return v.Node == n.Name && v.Plugin == "" })
			why := fmt.Sprintf("persistentvolume/%s of the claim %s is not for this node", pv.Name, claim.Name)
			verdicts = append(verdicts, Verdict{Node: n.Name, Plugin: "VolumeBinding", Reasons: []string{why}})
		}
	}
	return verdicts
}

// schedulerSays is the scheduler's message without what it adds about preemption.
//
// Source: FitError in k8s.io/kubernetes/pkg/scheduler/framework/types.go
func schedulerSays(message string) string {
	before, _, _ := strings.Cut(message, " preemption:")
	return sentence(before)
}

// codeOfMessage is the code of the scheduler's message when the nodes cannot be compared: by the one reason it has,
// else mixed.
//
// Source: the ErrReason constants in k8s.io/kubernetes/pkg/scheduler/framework/plugins
func codeOfMessage(message string) Code {
	text, codes := schedulerSays(message), map[Code]bool{}
	for part, code := range map[string]Code{
		"Insufficient ": InsufficientResources, "Too many pods": InsufficientResources, "node affinity/selector": NodeSelectorMismatch,
		"untolerated taint": TaintNotTolerated, "were unschedulable": NodesCordoned, "pod affinity rules": PodAffinityUnmet,
		"anti-affinity rules": PodAntiAffinity, "topology spread constraints": TopologySpread, "free ports": HostPortTaken,
		"PersistentVolume's node affinity": VolumePlacement, "volume node affinity conflict": VolumePlacement,
	} {
		if strings.Contains(text, part) {
			codes[code] = true
		}
	}
	switch len(codes) {
	case 0:
		return SchedulerRefuses
	case 1:
		for code := range codes {
			return code
		}
	}
	return SchedulingMixed
}
