package scheduling

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"kubelith.io/kubelith/plugins/pluginstest"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
	"kubelith.io/kubelith/plugins/sdk"
)

// scheduleAll runs the scheduler until pods of one template are bound, one to a node.
func (r *rig) scheduleAll(count int) {
	r.t.Helper()
	var mu sync.Mutex
	bound := map[string]string{}
	r.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := a.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		mu.Lock()
		defer mu.Unlock()
		bound[b.Target.Name] = b.Name
		return true, b, nil
	})
	large := map[corev1.ResourceName]string{corev1.ResourceCPU: "5"} // of 8
	for i := range count {
		if _, err := r.client.CoreV1().Nodes().Create(r.ctx, node(fmt.Sprint("n", i), "good"), metav1.CreateOptions{}); err != nil {
			r.t.Fatal(err)
		}
		name := fmt.Sprint("p", i)
		pod := st.MakePod().Name(name).UID(name).Namespace("default").SchedulerName(r.f.ProfileName()).Label("app", "a").Req(large).Obj()
		if _, err := r.client.CoreV1().Pods("default").Create(r.ctx, pod, metav1.CreateOptions{}); err != nil {
			r.t.Fatal(err)
		}
	}
	r.pods.Start(r.ctx.Done())
	r.pods.WaitForCacheSync(r.ctx.Done())
	if err := r.sched.WaitForHandlersSync(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); r.sched.Run(r.ctx) }()
	r.t.Cleanup(func() { r.stop(); <-ended })
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		mu.Lock()
		n := len(bound)
		mu.Unlock()
		if n == count {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%d of %d pods are bound", n, count)
		}
	}
}

// batching is the default profile without upstream's default constraints of spreading, with which upstream batches
// nothing.
func batching(t *testing.T) []config.KubeSchedulerProfile {
	t.Helper()
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range defaults.Profiles[0].PluginConfig {
		if args, ok := c.Args.(*config.PodTopologySpreadArgs); ok {
			args.DefaultingType, args.DefaultConstraints = config.ListDefaulting, nil
			return defaults.Profiles
		}
	}
	t.Fatal("the default profile does not configure spreading")
	return nil
}

// TestBatching: upstream reuses what it found for one pod for the next one of the same template, with a plugin as
// without: most pods are not scored. A plugin that wants whole pods gives that up.
func TestBatching(t *testing.T) {
	const count = 40
	for _, full := range []bool{false, true} {
		s := byZone
		s.FullPod = full
		p := started(t, s)
		r, began := newRigOf(t, batching(t), p), time.Now()
		r.scheduleAll(count)
		asked := requests(p)
		filtered, scored := strings.Count(asked, "Filter"), strings.Count(asked, "Score")
		if filtered < count {
			t.Errorf("full pod %v: the plugin filtered for %d of %d pods", full, filtered, count)
		}
		// The last pod has one node left, and is not scored. Upstream throws a batch away after half a second.
		if full && scored < count-1 || !full && scored > count/4+int(2*time.Since(began).Seconds()) {
			t.Errorf("full pod %v: scored for %d of %d pods", full, scored, count)
		}
	}
}

// TestSignature: pods that look the same to a plugin have the same signature, and no others.
func TestSignature(t *testing.T) {
	r := newRigOf(t, batching(t), started(t, byZone))
	base := func() *st.PodWrapper {
		return st.MakePod().Name("a").UID("a").Namespace("default").Label("app", "a").Annotation("note", "1").Toleration("k")
	}
	of := func(w *st.PodWrapper) string { return string(r.f.SignPod(r.ctx, w.Obj())) }
	want := of(base())
	if want == "" {
		t.Fatal("the pod is not signed: batching is off")
	}
	for name, w := range map[string]*st.PodWrapper{
		"name and uid":       base().Name("b").UID("b"),
		"what kubectl notes": base().Annotation(corev1.LastAppliedConfigAnnotation, "{}"),
	} {
		if of(w) != want {
			t.Errorf("another %s changes the signature", name)
		}
	}
	for name, w := range map[string]*st.PodWrapper{
		"namespace":  base().Namespace("other"),
		"label":      base().Label("app", "b"),
		"annotation": base().Annotation("note", "2"),
		"toleration": base().Toleration("other"),
		"priority":   base().Priority(7),
		"request":    base().Req(map[corev1.ResourceName]string{corev1.ResourceMemory: "1"}),
		"selector":   base().NodeSelector(map[string]string{"a": "b"}),
		"affinity":   base().NodeAffinityIn("a", []string{"b"}, st.NodeSelectorTypeMatchExpressions),
	} {
		if of(w) == want {
			t.Errorf("another %s does not change the signature", name)
		}
	}
}

// TestProfiles: the default profile has all plugins that it does not mention; others have those that they name.
func TestProfiles(t *testing.T) {
	log, _ := logrustest.NewNullLogger()
	start := func(name string, weight int) *process {
		p := newProcess(name)
		p.start(t, sdk.Scheduling{Score: byZone.Score, Weight: weight})
		return p
	}
	enabled := func(names ...config.Plugin) *config.Plugins {
		return &config.Plugins{MultiPoint: config.PluginSet{Enabled: names}}
	}
	profile := func(name string, p *config.Plugins) config.KubeSchedulerProfile {
		return config.KubeSchedulerProfile{SchedulerName: name, Plugins: p}
	}
	said := enabled(config.Plugin{Name: "one", Weight: 9})
	for _, tc := range []struct {
		name    string
		profile config.KubeSchedulerProfile
		want    []config.Plugin
		fails   string
	}{
		{"default", profile("default-scheduler", nil), []config.Plugin{{Name: "one", Weight: 3}, {Name: "two", Weight: 1}}, ""},
		{"default with a weight", profile("default-scheduler", said), []config.Plugin{{Name: "one", Weight: 9}, {Name: "two", Weight: 1}}, ""},
		{"default without one", profile("default-scheduler", &config.Plugins{MultiPoint: config.PluginSet{Disabled: []config.Plugin{{Name: "one"}}}}), []config.Plugin{{Name: "two", Weight: 1}}, ""},
		{"default without any", profile("default-scheduler", &config.Plugins{MultiPoint: config.PluginSet{Disabled: []config.Plugin{{Name: "*"}}}}), nil, ""},
		{"another", profile("other", nil), nil, ""},
		{"another that names one", profile("other", enabled(config.Plugin{Name: "one"})), []config.Plugin{{Name: "one", Weight: 3}}, ""},
		{"half", profile("other", &config.Plugins{Score: config.PluginSet{Enabled: []config.Plugin{{Name: "two"}}}}), nil, "profile other: plugin two: name it under plugins.multiPoint.enabled"},
	} {
		e := New(pluginstest.NewSet(start("one", 3), start("two", 0)), logrus.NewEntry(log))
		before := tc.profile.DeepCopy()
		got, err := e.Profiles([]config.KubeSchedulerProfile{tc.profile})
		e.Close()
		if tc.fails != "" || err != nil {
			if err == nil || tc.fails == "" || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: %v, want %q", tc.name, err, tc.fails)
			}
			continue
		}
		if !slices.Equal(got[0].Plugins.MultiPoint.Enabled, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got[0].Plugins.MultiPoint.Enabled, tc.want)
		}
		if !reflect.DeepEqual(before, &tc.profile) {
			t.Errorf("%s: what was given has changed", tc.name)
		}
	}
}

// TestTwoProfiles: profiles share a plugin's process and what it has received.
func TestTwoProfiles(t *testing.T) {
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	other := *defaults.Profiles[0].DeepCopy()
	other.SchedulerName = "other"
	other.Plugins.MultiPoint.Enabled = append(other.Plugins.MultiPoint.Enabled, config.Plugin{Name: "zones"})
	p := started(t, byZone)
	r := newRigOf(t, append(defaults.Profiles, other), p)
	r.nodes(node("a", "no"), node("b", "best"), node("c", "good"))
	for _, name := range []string{"default-scheduler", "other", "default-scheduler"} {
		r.f = r.sched.Profiles[name]
		if got, _, err := r.schedule(st.MakePod().Name("p").UID("p").SchedulerName(name).Obj()); got != "b" || err != nil {
			t.Errorf("profile %s: node %q, %v", name, got, err)
		}
	}
	sent := 0
	for _, request := range p.took() {
		if f, ok := request.(interface{ GetUpdate() *schedulingv1.Update }); ok {
			sent += len(f.GetUpdate().GetChanged())
		}
	}
	if sent != 3 {
		t.Errorf("%d nodes were sent, want each once", sent)
	}
}

func TestValidate(t *testing.T) {
	scheduling := func(d *pluginv1.SchedulingDescription) *pluginv1.Description {
		return &pluginv1.Description{Kind: &pluginv1.Description_Scheduling{Scheduling: d}}
	}
	for _, tc := range []struct {
		d    *pluginv1.Description
		says string
	}{
		{scheduling(&pluginv1.SchedulingDescription{Score: true, Weight: 7, Timeout: durationpb.New(time.Second)}), ""},
		{&pluginv1.Description{}, "does not describe a scheduling plugin"},
		{nil, "does not describe a scheduling plugin"},
		{scheduling(&pluginv1.SchedulingDescription{}), "neither filters nor scores"},
		{scheduling(&pluginv1.SchedulingDescription{Score: true, Weight: -1}), "its weight is -1"},
		{scheduling(&pluginv1.SchedulingDescription{Score: true, Weight: 1001}), "its weight is 1001"},
		{scheduling(&pluginv1.SchedulingDescription{Score: true, Timeout: durationpb.New(-1)}), "its timeout is -1ns"},
		{scheduling(&pluginv1.SchedulingDescription{Score: true, Timeout: durationpb.New(time.Minute)}), "its timeout is 1m0s"},
	} {
		if err := Validate("x", tc.d); (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v: %v, want %q", tc.d, err, tc.says)
		}
	}
}
