package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

// learnt is a plugin that knows what the containers of images have used: samples of a namespace and image, all of the
// same CPU and memory.
func learnt(percentile, minSamples float64, samples map[image]int) *plugin {
	p := &plugin{settings: settings{Percentile: percentile, MinSamples: minSamples}, history: newHistory(week), log: hclog.NewNullLogger()}
	for i, n := range samples {
		for range n {
			p.history.add(i, 100, 64<<20, time.Now())
		}
	}
	return p
}

const week = 7 * 24 * time.Hour

func container(name, image, resources string) corev1.Container {
	c := corev1.Container{Name: name, Image: image}
	if err := json.Unmarshal([]byte("{"+resources+"}"), &c.Resources); err != nil {
		panic(err)
	}
	return c
}

// requests is the text of what a container requests and is limited to. What was learnt is up to 5 % more: 104m and
// 67Mi.
func requests(c corev1.Container) string {
	text, err := json.Marshal(c.Resources)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestFill(t *testing.T) {
	p := learnt(90, 3, map[image]int{{"ns", "app:1"}: 3})
	for _, tc := range []struct {
		name, has, whole, want, did string
	}{
		{"nothing", ``, ``, `{"requests":{"cpu":"104m","memory":"67Mi"}}`, "cpu, memory request for container main"},
		{"CPU", `"requests":{"cpu":"1"}`, ``, `{"requests":{"cpu":"1","memory":"67Mi"}}`, "memory request for container main"},
		{"memory", `"requests":{"memory":"1Gi"}`, ``, `{"requests":{"cpu":"104m","memory":"1Gi"}}`, "cpu request for container main"},
		{"both", `"requests":{"memory":"1Gi","cpu":"1"}`, ``, `{"requests":{"cpu":"1","memory":"1Gi"}}`, ""},
		{"high limits", `"limits":{"memory":"1Gi","cpu":"1"}`, ``, `{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"104m","memory":"67Mi"}}`, "cpu, memory request for container main"},
		{"low limits", `"limits":{"memory":"1Mi","cpu":"3m"}`, ``, `{"limits":{"cpu":"3m","memory":"1Mi"},"requests":{"cpu":"3m","memory":"1Mi"}}`, "cpu, memory request for container main"},
		{"the pod's memory", ``, `"limits":{"memory":"1Gi"}`, `{"requests":{"cpu":"104m"}}`, "cpu request for container main"},
		{"the pod's CPU", ``, `"requests":{"cpu":"1"}`, `{"requests":{"memory":"67Mi"}}`, "memory request for container main"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container("main", "app:1", tc.has)}}}
		if tc.whole != "" {
			pod.Spec.Resources = ptr.To(container("", "", tc.whole).Resources)
		}
		p.fill(pod, "ns", time.Now())
		if got := requests(pod.Spec.Containers[0]); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
		if tc.did != "" {
			tc.did = "Initial Resources plugin set: " + tc.did
		}
		if got := pod.Annotations[annotation]; got != tc.did {
			t.Errorf("%s: annotation %q", tc.name, got)
		}
	}
}

func TestFillManyContainers(t *testing.T) {
	p := learnt(90, 3, map[image]int{{"ns", "app:1"}: 3})
	sidecar := container("sidecar", "app:1", "")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{container("init", "app:1", ""), sidecar},
		Containers:     []corev1.Container{container("a", "app:1", ""), container("b", "other:1", ""), container("c", "app:1", `"requests":{"cpu":"1"}`)},
	}}
	if n := p.fill(pod, "ns", time.Now()); n != 5 {
		t.Errorf("%d are set", n)
	}
	if got, want := pod.Annotations[annotation], "Initial Resources plugin set: cpu, memory request for container sidecar; cpu, memory request for container a; memory request for container c"; got != want {
		t.Errorf("annotation %q", got)
	}
	if len(pod.Spec.InitContainers[0].Resources.Requests)+len(pod.Spec.Containers[1].Resources.Requests) > 0 {
		t.Errorf("%+v", pod.Spec)
	}
}

// TestWider: the same image in the namespace counts, then in all, then any version of it.
func TestWider(t *testing.T) {
	samples := map[image]int{{"a", "reg:5000/app:1"}: 10, {"b", "reg:5000/app:1"}: 2, {"c", "reg:5000/app@sha256:12"}: 4, {"c", "reg:5000/app2"}: 50}
	for _, tc := range []struct {
		namespace, image string
		min              float64
		only             bool
		samples          float64 // that decide; 0: none
	}{
		{"a", "reg:5000/app:1", 10, false, 10},
		{"a", "reg:5000/app:1", 11, false, 12},
		{"b", "reg:5000/app:1", 3, false, 12},
		{"new", "reg:5000/app:1", 3, false, 12},
		{"a", "reg:5000/app:1", 13, false, 16},
		{"a", "reg:5000/app:2", 3, false, 16},
		{"a", "reg:5000/app", 3, false, 16},
		{"a", "reg:5000/app:1", 17, false, 0},
		{"a", "app:1", 1, false, 0},
		{"a", "reg:5000/app:1", 10, true, 10},
		{"a", "reg:5000/app:2", 10, true, 10},
		{"b", "reg:5000/app:1", 3, true, 0},
		{"new", "reg:5000/app:1", 1, true, 0},
	} {
		p := learnt(90, tc.min, samples)
		p.settings.NamespaceOnly = tc.only
		known, enough := p.known(tc.image, tc.namespace, time.Now())
		if got := known.CPU.weight(); enough != (tc.samples > 0) || got < tc.samples-0.01 || got > tc.samples+0.01 {
			t.Errorf("%+v: %v, %v", tc, got, enough)
		}
	}
}

func TestRepository(t *testing.T) {
	for name, want := range map[string]string{
		"app": "app", "app:1": "app", "reg:5000/app": "reg:5000/app", "reg:5000/app:1": "reg:5000/app", "reg/app:1@sha256:ab": "reg/app", "reg:5000/app@sha256:ab": "reg:5000/app", "": "",
	} {
		if got := repository(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestReview(t *testing.T) {
	p := learnt(90, 3, map[image]int{{"ns", "app:1"}: 3})
	a := p.admission()
	a.Configure = nil // it would connect
	conn := sdktest.Connect(t, a.Register)
	pod := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container("main", "app:1", "")}}}
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	r := sdktest.Review(t, conn, "pods", admissionv1.AdmissionRequest{Namespace: "ns"}, pod, nil)
	patch, err := jsonpatch.DecodePatch(r.Patch)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	if text, err = patch.Apply(text); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &pod); err != nil {
		t.Fatal(err)
	}
	if !r.Allowed || requests(pod.Spec.Containers[0]) != `{"requests":{"cpu":"104m","memory":"67Mi"}}` || pod.Annotations[annotation] == "" {
		t.Errorf("%+v", pod)
	}
	for name, unchanged := range map[string]corev1.Pod{
		"all is set":   pod,
		"not known":    {Spec: corev1.PodSpec{Containers: []corev1.Container{container("main", "other:1", "")}}},
		"a mirror pod": {ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{container("main", "app:1", "")}}},
	} {
		if r := sdktest.Review(t, conn, "pods", admissionv1.AdmissionRequest{Namespace: "ns"}, unchanged, nil); !r.Allowed || r.Patch != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	var out strings.Builder
	if err := p.metrics(&out); err != nil || !strings.Contains(out.String(), "\ninitialresources_samples_total 3\n") || !strings.Contains(out.String(), "\ninitialresources_requests_total 2\n") {
		t.Errorf("%s, %v", out.String(), err)
	}
}

func TestConfigure(t *testing.T) {
	connect := func() (dynamic.Interface, error) { return clusterOf(), nil }
	for config, says := range map[string]string{
		`{"percentile":0}`:       "percentile: 0 is not between 1 and 100",
		`{"percentile":101}`:     "percentile: 101",
		`{"minSamples":0}`:       "minSamples: 0 is less than 1",
		`{"refresh":"10ms"}`:     `refresh: "10ms" is not a duration of at least 1s`,
		`{"halfLife":"week"}`:    `halfLife: "week" is not a duration of at least 1h`,
		`{"precentile":90}`:      "precentile",
		`{"namespaceOnly":"no"}`: "namespaceOnly",
	} {
		p := &plugin{connect: connect}
		if err := p.configure(sdk.Config{DataDir: t.TempDir(), JSON: []byte(config), Log: hclog.NewNullLogger()}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", config, err)
		}
	}
	p := &plugin{connect: connect}
	if err := p.configure(sdk.Config{Log: hclog.NewNullLogger()}); err == nil || !strings.Contains(err.Error(), "remove limits.uid") {
		t.Errorf("without a data directory: %v", err)
	}
	p = &plugin{connect: func() (dynamic.Interface, error) { return nil, errors.New("no kubeconfig") }}
	if err := p.configure(sdk.Config{DataDir: t.TempDir(), Log: hclog.NewNullLogger()}); err == nil || err.Error() != "no kubeconfig" {
		t.Errorf("without a kubeconfig: %v", err)
	}
	// A broken file of an earlier run is no reason not to start.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "usage.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = &plugin{connect: connect}
	if err := p.configure(sdk.Config{DataDir: dir, Log: hclog.NewNullLogger()}); err != nil {
		t.Error(err)
	}
}

// clusterOf is one with the given objects.
func clusterOf(objects ...runtime.Object) *fake.FakeDynamicClient {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	return fake.NewSimpleDynamicClientWithCustomListKinds(scheme, map[schema.GroupVersionResource]string{metricsResource: "PodMetricsList"}, objects...)
}

var began = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func running(name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(began)}, Spec: corev1.PodSpec{Containers: containers}}
}

func measured(name string, after time.Duration, containers ...string) *metricsv1beta1.PodMetrics {
	m := &metricsv1beta1.PodMetrics{TypeMeta: metav1.TypeMeta{APIVersion: "metrics.k8s.io/v1beta1", Kind: "PodMetrics"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Timestamp: metav1.NewTime(began.Add(after)), Window: metav1.Duration{Duration: 15 * time.Second}}
	for _, c := range containers {
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: c, Usage: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("99500001n"), corev1.ResourceMemory: resource.MustParse("65000Ki")}})
	}
	return m
}

// TestRound: each measurement counts once, for the image of its container.
func TestRound(t *testing.T) {
	client := clusterOf(running("a", container("main", "app:1", ""), container("other", "other:1", "")), running("b", container("main", "app:1", "")))
	put := func(m *metricsv1beta1.PodMetrics) {
		t.Helper()
		if err := client.Tracker().Delete(metricsResource, "ns", m.Name); err != nil && !strings.Contains(err.Error(), "not found") {
			t.Fatal(err)
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Tracker().Create(metricsResource, &unstructured.Unstructured{Object: object}, "ns"); err != nil {
			t.Fatal(err)
		}
	}
	h := newHistory(week)
	s := newSampler(client, h)
	s.follow(t.Context())
	for _, step := range []struct {
		name    string
		put     *metricsv1beta1.PodMetrics
		samples int64 // afterwards
	}{
		{"nothing measured", nil, 0},
		{"of an earlier pod of the name", measured("a", -time.Second, "main", "other"), 0},
		{"measured", measured("a", time.Minute, "main", "other", "unknown"), 2},
		{"nothing new", nil, 2},
		{"measured again", measured("a", 2*time.Minute, "main", "other"), 4},
		{"another pod", measured("b", time.Minute, "main"), 5},
		{"a pod that is gone", measured("c", time.Minute, "main"), 5},
	} {
		if step.put != nil {
			put(step.put)
		}
		if err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, samples := h.size(); samples != step.samples {
			t.Errorf("%s: %d samples, want %d", step.name, samples, step.samples)
		}
	}
	app := h.images[image{"ns", "app:1"}]
	if cpu, memory := app.CPU.percentile(90, cpuScale), app.Memory.percentile(90, memoryScale)>>20; len(h.images) != 2 || cpu < 100 || cpu > 105 || memory < 63 || memory > 67 {
		t.Errorf("%dm, %d MiB of %d images", cpu, memory, len(h.images))
	}
	for _, object := range s.pods.GetStore().List() {
		if pod := object.(*corev1.Pod); pod.Spec.Containers[0].Name != "main" || fmt.Sprint(pod.CreationTimestamp.UTC()) != fmt.Sprint(began) {
			t.Errorf("%+v", pod)
		}
	}
}
