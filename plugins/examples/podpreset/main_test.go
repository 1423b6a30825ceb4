package main

import (
	"encoding/json"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"google.golang.org/grpc"

	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

// connectTo runs the plugin in a cluster with the given presets, JSON of their specs by name.
func connectTo(t *testing.T, presets map[string]string) *grpc.ClientConn {
	t.Helper()
	objects := []runtime.Object{}
	for name, spec := range presets {
		object := &unstructured.Unstructured{}
		text := `{"apiVersion":"settings.kubelith.io/v1alpha1","kind":"PodPreset","metadata":{"namespace":"ns","name":"` + name + `","resourceVersion":"7"},"spec":` + spec + `}`
		if err := object.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: "PodPresetList"}, objects...)
	conn := sdktest.Connect(t, plugin(func() (dynamic.Interface, error) { return client, nil }).Register)
	if _, err := sdktest.Describe(t, conn, "podpreset", ""); err != nil {
		t.Fatal(err)
	}
	return conn
}

// preset reviews a pod and returns it as it would be created.
func preset(t *testing.T, conn *grpc.ClientConn, pod corev1.Pod) (corev1.Pod, []string) {
	t.Helper()
	r := sdktest.Review(t, conn, "pods", admissionv1.AdmissionRequest{Namespace: "ns"}, pod, nil)
	if !r.Allowed {
		t.Fatalf("denied: %+v", r)
	}
	if r.Patch == nil {
		return pod, r.Warnings
	}
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(r.Patch)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = patch.Apply(text); err != nil {
		t.Fatal(err)
	}
	var out corev1.Pod
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out, r.Warnings
}

const frontend = `{"selector":{"matchLabels":{"role":"frontend"}},"env":[{"name":"DB_PORT","value":"6379"}],"envFrom":[{"configMapRef":{"name":"db"}}],
	"volumes":[{"name":"cache","emptyDir":{}}],"volumeMounts":[{"name":"cache","mountPath":"/cache"}]}`

func pod() corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"role": "frontend"}},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}}}}}
}

func TestPodPreset(t *testing.T) {
	conn := connectTo(t, map[string]string{"frontend": frontend, "other": `{"selector":{"matchLabels":{"role":"other"}},"env":[{"name":"OTHER","value":"x"}]}`})
	got, warnings := preset(t, conn, pod())
	if len(warnings) > 0 || got.Annotations[applied+"frontend"] != "7" || len(got.Spec.Volumes) != 1 || got.Spec.Volumes[0].EmptyDir == nil {
		t.Errorf("%+v, %q", got, warnings)
	}
	for _, c := range append(got.Spec.InitContainers, got.Spec.Containers...) {
		if last := c.Env[len(c.Env)-1]; last.Name != "DB_PORT" || last.Value != "6379" || c.EnvFrom[0].ConfigMapRef.Name != "db" || c.VolumeMounts[0].MountPath != "/cache" {
			t.Errorf("container %s: %+v", c.Name, c)
		}
	}
	if got.Spec.Containers[0].Env[0].Name != "A" {
		t.Errorf("the pod's own variable: %+v", got.Spec.Containers[0].Env)
	}
}

func TestWithoutPreset(t *testing.T) {
	conn := connectTo(t, map[string]string{"frontend": frontend})
	for name, change := range map[string]func(*corev1.Pod){
		"not selected": func(p *corev1.Pod) { p.Labels = nil },
		"excluded":     func(p *corev1.Pod) { p.Annotations = map[string]string{exclude: "true"} },
		"mirror pod":   func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
	} {
		p := pod()
		change(&p)
		if got, warnings := preset(t, conn, p); len(got.Spec.Volumes) > 0 || len(warnings) > 0 {
			t.Errorf("%s: %+v, %q", name, got.Spec, warnings)
		}
	}
	if got, _ := preset(t, connectTo(t, nil), pod()); len(got.Spec.Volumes) > 0 {
		t.Errorf("without any preset: %+v", got.Spec)
	}
}

// TestConflict: as upstream, a pod that presets contradict is created without any of them; the user gets a warning.
func TestConflict(t *testing.T) {
	conn := connectTo(t, map[string]string{"frontend": frontend})
	for says, change := range map[string]func(*corev1.Pod){
		"another variable DB_PORT": func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "DB_PORT", Value: "1"}} },
		"another volume cache":     func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "cache"}} },
		"data is mounted at /cache": func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/cache"}}
		},
		"another mount cache": func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "cache", MountPath: "/x"}}
		},
	} {
		p := pod()
		change(&p)
		got, warnings := preset(t, conn, p)
		if len(got.Annotations) > 0 || len(warnings) != 1 || !strings.Contains(warnings[0], says) {
			t.Errorf("%s: %q, %+v", says, warnings, got)
		}
	}
	same := pod()
	same.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "DB_PORT", Value: "6379"}}
	if got, warnings := preset(t, conn, same); len(warnings) > 0 || len(got.Spec.Containers[0].Env) != 1 {
		t.Errorf("the same variable: %q, %+v", warnings, got.Spec.Containers[0].Env)
	}
}
