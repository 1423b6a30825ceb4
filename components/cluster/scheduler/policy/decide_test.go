package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/components/cluster/scheduler/removed"
)

// rig is upstream's scheduler with the profile of a policy, and with a cluster.
type rig struct {
	t     *testing.T
	ctx   context.Context
	f     framework.Framework
	nodes []fwk.NodeInfo
}

func newRig(t *testing.T, policy string, objects ...runtime.Object) *rig {
	t.Helper()
	if !strings.HasPrefix(policy, "{") {
		policy = head + policy
	}
	translation, err := Load([]byte(policy))
	if err != nil {
		t.Fatalf("%s: %v", policy, err)
	}
	reads(t, []byte(policy), translation)
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset(objects...)
	informers := scheduler.NewInformerFactory(client, 0, nil)
	t.Cleanup(func() {
		cancel()
		informers.Shutdown()
	})
	sched, err := scheduler.New(ctx, client, informers, nil, func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1000) },
		scheduler.WithProfiles(translation.Config.Profiles...), scheduler.WithExtenders(translation.Config.Extenders...),
		scheduler.WithFrameworkOutOfTreeRegistry(removed.Registry()))
	if err != nil {
		t.Fatal(err)
	}
	if sched.APIDispatcher != nil {
		sched.APIDispatcher.Run(klog.Background())
		t.Cleanup(sched.APIDispatcher.Close)
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	if err := sched.WaitForHandlersSync(ctx); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: ctx, f: sched.Profiles[corev1.DefaultSchedulerName]}
	snapshot := r.f.SnapshotSharedLister().(*cache.Snapshot)
	if err := sched.Cache.UpdateSnapshot(klog.Background(), snapshot); err != nil {
		t.Fatal(err)
	}
	if r.nodes, err = snapshot.NodeInfos().List(); err != nil {
		t.Fatal(err)
	}
	return r
}

// fitting are the nodes that no filter excludes.
func (r *rig) fitting(pod *corev1.Pod) (string, fwk.CycleState) {
	r.t.Helper()
	state := framework.NewCycleState()
	result, status, _ := r.f.RunPreFilterPlugins(r.ctx, state, pod)
	if !status.IsSuccess() && !status.IsRejected() {
		r.t.Fatal(status.AsError())
	}
	var fit []string
	for _, info := range r.nodes {
		name := info.Node().Name
		if status.IsRejected() || !result.AllNodes() && !result.NodeNames.Has(name) {
			continue
		}
		switch status := r.f.RunFilterPlugins(r.ctx, state, pod, info); {
		case status.IsSuccess():
			fit = append(fit, name)
		case !status.IsRejected():
			r.t.Fatalf("node %s: %v", name, status.AsError())
		}
	}
	slices.Sort(fit)
	return strings.Join(fit, " "), state
}

// scores are the weighted sums of all nodes.
func (r *rig) scores(pod *corev1.Pod) map[string]int64 {
	r.t.Helper()
	_, state := r.fitting(pod)
	if status := r.f.RunPreScorePlugins(r.ctx, state, pod, r.nodes); !status.IsSuccess() {
		r.t.Fatal(status.AsError())
	}
	all, status := r.f.RunScorePlugins(r.ctx, state, pod, r.nodes)
	if !status.IsSuccess() {
		r.t.Fatal(status.AsError())
	}
	scores := map[string]int64{}
	for _, s := range all {
		scores[s.Name] = s.TotalScore
	}
	return scores
}

func object[T any](o *T, changes ...func(*T)) *T {
	for _, change := range changes {
		change(o)
	}
	return o
}

// node is one with 4 CPUs and 4 GiB, the hostname label, and label=value for each pair.
func node(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("4Gi"), "pods": resource.MustParse("10")}
	return n
}

func pod(changes ...func(*corev1.Pod)) *corev1.Pod {
	return object(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new", UID: "new", Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "main", Image: "example.com/image:1"}}},
	}, changes...)
}

// on assigns a pod to a node.
func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Name, p.UID, p.Spec.NodeName = "on-"+node, types.UID("on-"+node), node
	}
}

func requests(cpu, memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
}

func hostPort(p *corev1.Pod) {
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: "TCP"}}
}

func selects(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"fit": "yes"} }

func volume(source corev1.VolumeSource) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
}

func claim(name string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// bound is a PersistentVolume and a claim of one name.
func bound(name string, changes ...func(*corev1.PersistentVolume)) []runtime.Object {
	capacity := corev1.ResourceList{"storage": resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return []runtime.Object{
		object(&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{Capacity: capacity, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: name}}},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		}, changes...),
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name, StorageClassName: ptr.To(""), AccessModes: modes,
				Resources: corev1.VolumeResourceRequirements{Requests: capacity}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
	}
}

// full is a node where a driver can attach one volume.
func full(driver string) runtime.Object {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: driver, NodeID: "bad", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](1)}},
	}}}
}

func service() runtime.Object {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "x"}}}
}

func spread(when corev1.UnsatisfiableConstraintAction) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: when, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		}}
	}
}

func term(app string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}
}

func antiAffinity(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term("x")}}}
}

func likes(weight int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: weight, PodAffinityTerm: term("x")}},
		}}
	}
}

func tainted(effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: effect}} }
}

// decision is a cluster where one name alone decides between the nodes good and bad.
type decision struct {
	name    string // in predicates() or priorities()
	entry   string // its text; empty: the name alone
	objects []runtime.Object
	pod     *corev1.Pod
}

// with is a cluster of these objects and the nodes good and bad, where they are not among them.
func with(objects ...runtime.Object) []runtime.Object {
	for _, name := range []string{"good", "bad"} {
		if !slices.ContainsFunc(objects, func(o runtime.Object) bool { n, ok := o.(*corev1.Node); return ok && n.Name == name }) {
			objects = append(objects, node(name))
		}
	}
	return objects
}

func disk(id string) corev1.VolumeSource {
	return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: []string{"192.0.2.1"}, RBDImage: id, RBDPool: "p", FSType: "ext4"}}
}

func ebs(id string) corev1.VolumeSource {
	return corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}
}

func gce(id string) corev1.VolumeSource {
	return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: id}}
}

func azure(id string) corev1.VolumeSource {
	return corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: id, DataDiskURI: "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/" + id}}
}

func cinder(id string) corev1.VolumeSource {
	return corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: id}}
}

// filterDecisions are clusters where only the node good fits.
func filterDecisions() []decision {
	small := object(node("bad"), func(n *corev1.Node) { n.Status.Allocatable["cpu"] = resource.MustParse("1") })
	fit := node("good", "fit", "yes")
	zones := []runtime.Object{node("good", "zone", "a"), node("bad", "zone", "b"), node("third", "zone", "a"), service(), pod(on("third"))}
	counted := func(name, driver string, source func(string) corev1.VolumeSource) decision {
		return decision{name, "", with(full(driver), pod(on("bad"), volume(source("vol-1")))), pod(volume(source("vol-2")))}
	}
	local := func(pv *corev1.PersistentVolume) {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "fit", Operator: corev1.NodeSelectorOpIn, Values: []string{"yes"}}}},
		}}}
	}
	zonal := func(pv *corev1.PersistentVolume) { pv.Labels = map[string]string{corev1.LabelTopologyZone: "a"} }
	return []decision{
		{"CheckNodeUnschedulable", "", with(object(node("bad"), func(n *corev1.Node) { n.Spec.Unschedulable = true })), pod()},
		{"PodToleratesNodeTaints", "", with(object(node("bad"), tainted(corev1.TaintEffectNoSchedule))), pod()},
		{"PodFitsResources", "", with(small), pod(requests("2", "1Gi"))},
		{"HostName", "", with(), pod(func(p *corev1.Pod) { p.Spec.NodeName = "good" })},
		{"PodFitsHostPorts", "", with(pod(on("bad"), hostPort)), pod(hostPort)},
		{"PodFitsPorts", "", with(pod(on("bad"), hostPort)), pod(hostPort)},
		{"MatchNodeSelector", "", with(fit), pod(selects)},
		{"GeneralPredicates", "", with(small), pod(requests("2", "1Gi"))},
		{"GeneralPredicates", "", with(), pod(func(p *corev1.Pod) { p.Spec.NodeName = "good" })},
		{"GeneralPredicates", "", with(pod(on("bad"), hostPort)), pod(hostPort)},
		{"GeneralPredicates", "", with(fit), pod(selects)},
		{"NoDiskConflict", "", with(pod(on("bad"), volume(disk("d")))), pod(volume(disk("d")))},
		{"NoVolumeZoneConflict", "", with(append(bound("v", zonal), node("good", corev1.LabelTopologyZone, "a"), node("bad", corev1.LabelTopologyZone, "b"))...), pod(volume(claim("v")))},
		{"CheckVolumeBinding", "", with(append(bound("v", local), fit)...), pod(volume(claim("v")))},
		counted("MaxEBSVolumeCount", "ebs.csi.aws.com", ebs),
		counted("MaxGCEPDVolumeCount", "pd.csi.storage.gke.io", gce),
		counted("MaxAzureDiskVolumeCount", "disk.csi.azure.com", azure),
		counted("MaxCinderVolumeCount", "cinder.csi.openstack.org", cinder),
		{"MaxCSIVolumeCountPred", "", with(append(append(bound("vol-1"), bound("vol-2")...), full("csi.example.com"), pod(on("bad"), volume(claim("vol-1"))))...), pod(volume(claim("vol-2")))},
		{"EvenPodsSpread", "", with(pod(on("bad"))), pod(spread(corev1.DoNotSchedule))},
		{"MatchInterPodAffinity", "", with(pod(on("bad"))), pod(antiAffinity)},
		{"CheckNodeLabelPresence", "{name: CheckNodeLabelPresence, argument: {labelsPresence: {labels: [fit], presence: true}}}", with(fit), pod()},
		{"CheckNodeLabelPresence", "{name: Retiring, argument: {labelsPresence: {labels: [retiring], presence: false}}}", with(node("bad", "retiring", "2030")), pod()},
		{"CheckNodeLabelPresence", "{name: Both, argument: {labelsPresence: {labels: [fit, other], presence: true}}}", with(node("good", "fit", "", "other", ""), node("bad", "fit", "")), pod()},
		{"CheckServiceAffinity", "{name: CheckServiceAffinity, argument: {serviceAffinity: {labels: [zone]}}}", zones, pod()},
		{"CheckServiceAffinity", "{name: Zones, argument: {serviceAffinity: {labels: [zone]}}}", with(node("good", "zone", "a"), node("bad", "zone", "b")), pod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} })},
	}
}

// TestPredicates: each name excludes what it should, and without it nothing is excluded, except by those that are
// always on.
func TestPredicates(t *testing.T) {
	missing := predicates()
	for i, d := range filterDecisions() {
		delete(missing, d.name)
		t.Run(fmt.Sprint(i, " ", d.name), func(t *testing.T) {
			t.Parallel()
			entry := d.entry
			if entry == "" {
				entry = "{name: " + d.name + "}"
			}
			only := "good"
			if strings.Contains(entry, "CheckServiceAffinity") {
				only = "good third"
			}
			fit := func(policy string) string {
				nodes, _ := newRig(t, policy+"\npriorities: []\n", d.objects...).fitting(d.pod)
				return nodes
			}
			if got := fit("predicates: [" + entry + "]"); got != only {
				t.Errorf("with it these nodes fit: %s", got)
			}
			always := slices.ContainsFunc(predicates()[d.name], func(f string) bool { return slices.Contains(mandatoryFilters(), f) })
			if got := fit("predicates: []"); (got == only) != always {
				t.Errorf("without it these nodes fit: %s", got)
			}
			// Beside a predicate that does not decide here, with which labels are checked by another plugin.
			if got := fit("predicates: [{name: MatchNodeSelector}, " + entry + "]"); got != only {
				t.Errorf("beside MatchNodeSelector these nodes fit: %s", got)
			}
		})
	}
	for name := range missing {
		t.Errorf("%s is not tested", name)
	}
}

// scoreDecisions are clusters where the node good has the highest score.
func scoreDecisions() []decision {
	busy := func(node string) []runtime.Object { return with(pod(on(node), requests("2", "2Gi"))) }
	spreads := with(service(), pod(on("bad")))
	prefers := pod(func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "fit", Operator: corev1.NodeSelectorOpExists}}}},
		}}}
	})
	image := object(node("good"), func(n *corev1.Node) {
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"example.com/image:1"}, SizeBytes: 900 << 20}}
	})
	avoiding := object(node("bad"), func(n *corev1.Node) {
		n.Annotations = map[string]string{corev1.PreferAvoidPodsAnnotationKey: `{"preferAvoidPods": [{"podSignature": {"podController": {"kind": "ReplicaSet", "uid": "r"}}}]}`}
	})
	owned := pod(func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r", Controller: ptr.To(true)}}
	})
	const ratio = "{name: R, weight: 1, argument: {requestedToCapacityRatioArguments: {shape: [{utilization: 0, score: %d}, {utilization: 100, score: %d}]%s}}}"
	return []decision{
		{"LeastRequestedPriority", "", busy("bad"), pod(requests("1", "1Gi"))},
		{"MostRequestedPriority", "", busy("good"), pod(requests("1", "1Gi"))},
		{"RequestedToCapacityRatioPriority", fmt.Sprintf(ratio, 0, 10, ""), busy("good"), pod(requests("1", "1Gi"))},
		{"RequestedToCapacityRatioPriority", fmt.Sprintf(ratio, 10, 0, ", resources: [{name: memory, weight: 3}]"), busy("bad"), pod(requests("1", "1Gi"))},
		{"BalancedResourceAllocation", "", with(pod(on("good"), requests("2", "1Mi"))), pod(requests("1m", "2Gi"))},
		{"ImageLocalityPriority", "", with(image), pod()},
		{"InterPodAffinityPriority", "", with(pod(on("good"))), pod(likes(1))},
		{"NodeAffinityPriority", "", with(node("good", "fit", "yes")), prefers},
		{"TaintTolerationPriority", "", with(object(node("bad"), tainted(corev1.TaintEffectPreferNoSchedule))), pod()},
		{"NodePreferAvoidPodsPriority", "", with(avoiding), owned},
		{"SelectorSpreadPriority", "", spreads, pod()},
		{"ServiceSpreadingPriority", "", spreads, pod()},
		{"EvenPodsSpreadPriority", "", with(pod(on("bad"))), pod(spread(corev1.ScheduleAnyway))},
		{"serviceAntiAffinity", "{name: Racks, weight: 1, argument: {serviceAntiAffinity: {label: rack}}}", with(node("good", "rack", "a"), node("bad", "rack", "b"), service(), pod(on("bad"))), pod()},
		{"labelPreference", "{name: Fast, weight: 1, argument: {labelPreference: {label: ssd, presence: true}}}", with(node("good", "ssd", "")), pod()},
		{"labelPreference", "{name: Old, weight: 1, argument: {labelPreference: {label: retiring, presence: false}}}", with(node("bad", "retiring", "")), pod()},
	}
}

// TestPriorities: each name prefers what it should, and without it both nodes are equal.
func TestPriorities(t *testing.T) {
	missing := priorities()
	missing["RequestedToCapacityRatioPriority"], missing["serviceAntiAffinity"], missing["labelPreference"] = "", "", ""
	delete(missing, "EqualPriority")
	for i, d := range scoreDecisions() {
		delete(missing, d.name)
		t.Run(fmt.Sprint(i, " ", d.name), func(t *testing.T) {
			t.Parallel()
			entry := d.entry
			if entry == "" {
				entry = "{name: " + d.name + ", weight: 1}"
			}
			score := func(list string) map[string]int64 {
				return newRig(t, "predicates: []\npriorities: ["+list+"]\n", d.objects...).scores(d.pod)
			}
			once := score(entry)
			if once["good"] <= once["bad"] || once["good"] > fwk.MaxScore {
				t.Errorf("with it: %v", once)
			}
			if without := score("{name: EqualPriority, weight: 5}"); without["good"] != without["bad"] {
				t.Errorf("without it: %v", without)
			}
			heavy := score(strings.Replace(entry, "weight: 1", "weight: 7", 1))
			if heavy["good"] != 7*once["good"] || heavy["bad"] != 7*once["bad"] {
				t.Errorf("with weight 7: %v, with weight 1: %v", heavy, once)
			}
		})
	}
	for name := range missing {
		t.Errorf("%s is not tested", name)
	}
}

// TestCapacities: the three priorities for free capacity together are the weighted sum of each alone, though they share
// a plugin.
func TestCapacities(t *testing.T) {
	entries := []string{
		"{name: LeastRequestedPriority, weight: 2}", "{name: MostRequestedPriority, weight: 3}",
		"{name: R, weight: 5, argument: {requestedToCapacityRatioArguments: {shape: [{utilization: 0, score: 2}, {utilization: 100, score: 9}], resources: [{name: cpu, weight: 1}]}}}",
	}
	score := func(entries ...string) map[string]int64 {
		objects := with(pod(on("good"), requests("2", "1Gi")), pod(on("bad"), requests("1", "3Gi")))
		return newRig(t, "predicates: []\npriorities: ["+strings.Join(entries, ", ")+"]\n", objects...).scores(pod(requests("500m", "512Mi")))
	}
	want := map[string]int64{}
	for _, entry := range entries {
		for name, s := range score(entry) {
			want[name] += s
		}
	}
	if got := score(entries...); !maps.Equal(got, want) || want["good"] == want["bad"] {
		t.Errorf("together %v, one by one %v", got, want)
	}
}

// TestSeveralLabels: one plugin scores for several labels, with the sum of their weights.
func TestSeveralLabels(t *testing.T) {
	objects := with(node("good", "a", "1", "b", "1", "c", "1", "d", "1"), node("bad", "a", "1", "b", "2", "d", "1"), service(), pod(on("bad")))
	for policy, want := range map[string]map[string]int64{
		"{name: A, weight: 2, argument: {labelPreference: {label: a, presence: true}}}, {name: C, weight: 2, argument: {labelPreference: {label: c, presence: true}}}": {"good": 400, "bad": 200},
		// The only pod is on the value 1 of a and d, and on the value 2 of b.
		"{name: A, weight: 2, argument: {serviceAntiAffinity: {label: a}}}, {name: B, weight: 2, argument: {serviceAntiAffinity: {label: b}}}": {"good": 200, "bad": 0},
		"{name: C, weight: 2, argument: {serviceAntiAffinity: {label: c}}}":                                                                    {"good": 200, "bad": 0},
	} {
		if got := newRig(t, "predicates: []\npriorities: ["+policy+"]\n", objects...).scores(pod()); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", policy, got, want)
		}
	}
}

// TestSpreadTogether: SelectorSpreadPriority alone brings default constraints, and EvenPodsSpreadPriority alone does
// not.
func TestSpreadTogether(t *testing.T) {
	for list, same := range map[string]bool{
		"{name: EvenPodsSpreadPriority, weight: 1}":                                            true,
		"{name: SelectorSpreadPriority, weight: 1}":                                            false,
		"{name: SelectorSpreadPriority, weight: 1}, {name: EvenPodsSpreadPriority, weight: 1}": false,
	} {
		got := newRig(t, "predicates: []\npriorities: ["+list+"]\n", with(service(), pod(on("bad")))...).scores(pod())
		if (got["good"] == got["bad"]) != same {
			t.Errorf("%s: %v", list, got)
		}
	}
}

// TestHardAffinity: a pod that requires the new one beside it counts with the weight in the policy.
func TestHardAffinity(t *testing.T) {
	requires := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term("x")}}}
	}
	for weight, good := range map[int]bool{0: false, 2: false, 100: true} {
		got := newRig(t, fmt.Sprintf("predicates: []\npriorities: [{name: InterPodAffinityPriority, weight: 1}]\nhardPodAffinitySymmetricWeight: %d\n", weight),
			with(pod(on("good"), requires), pod(on("bad"), likes(50)))...).scores(pod())
		if (got["good"] > got["bad"]) != good {
			t.Errorf("weight %d: %v", weight, got)
		}
	}
}

// TestServiceAffinityWithoutVictims: preemption sees the filter's result without a pod, and with it again.
func TestServiceAffinityWithoutVictims(t *testing.T) {
	other := pod(on("third"))
	r := newRig(t, "predicates: [{name: Z, argument: {serviceAffinity: {labels: [zone]}}}]\npriorities: []\n",
		node("good", "zone", "a"), node("bad", "zone", "b"), node("third", "zone", "a"), service(), other)
	fit, state := r.fitting(pod())
	if fit != "good third" {
		t.Fatalf("these nodes fit: %s", fit)
	}
	var bad, third fwk.NodeInfo
	for _, info := range r.nodes {
		switch info.Node().Name {
		case "bad":
			bad = info
		case "third":
			third = info
		}
	}
	victim, err := framework.NewPodInfo(other)
	if err != nil {
		t.Fatal(err)
	}
	dry := state.Clone()
	if s := r.f.RunPreFilterExtensionRemovePod(r.ctx, dry, pod(), victim, third); !s.IsSuccess() {
		t.Fatal(s.AsError())
	}
	if s := r.f.RunFilterPlugins(r.ctx, dry, pod(), bad); !s.IsSuccess() {
		t.Errorf("without the pod in the other zone: %v", s)
	}
	if s := r.f.RunPreFilterExtensionAddPod(r.ctx, dry, pod(), victim, third); !s.IsSuccess() {
		t.Fatal(s.AsError())
	}
	if s := r.f.RunFilterPlugins(r.ctx, dry, pod(), bad); s.IsSuccess() {
		t.Error("the zone is free with the pod in the other one again")
	}
	if s := r.f.RunFilterPlugins(r.ctx, state, pod(), bad); s.IsSuccess() {
		t.Error("the dry run has changed the state of the cycle")
	}
}

func needsGPU(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
}
