package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

func class(name, provisioner, mode string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, Parameters: map[string]string{"mode": mode}}
}

func claim(name, class, volume string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: volume}}
}

func podOf(claims ...string) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "prepare"}}, Containers: []corev1.Container{{Name: "main"}}}}
	for _, name := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
	return pod
}

// TestInject: a pod gets one client, before its other containers, if one of its claims needs it.
func TestInject(t *testing.T) {
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "fuse.kubelith.io", VolumeAttributes: map[string]string{"mode": "sidecar"}}}}}
	api := fake.NewClientset([]runtime.Object{class("in-pod", "fuse.kubelith.io", "sidecar"), class("fuse", "fuse.kubelith.io", "mountpod"),
		class("other", "example.com", "sidecar"), volume, claim("dynamic", "in-pod", ""), claim("static", "", "static"), claim("mountpod", "fuse", ""),
		claim("other", "other", ""), claim("unbound", "", "none")}...)
	conn := sdktest.Connect(t, plugin(func() (kubernetes.Interface, error) { return api, nil }).Register)
	if _, err := sdktest.Describe(t, conn, "fuse-sidecar", `{"image":"client:1"}`); err != nil {
		t.Fatal(err)
	}
	ephemeral := podOf()
	ephemeral.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("in-pod")}}}}}}
	request := admissionv1.AdmissionRequest{Namespace: "ns"}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"dynamic": {podOf("mountpod", "dynamic", "static"), true}, "static": {podOf("static"), true}, "ephemeral": {ephemeral, true},
		"others": {podOf("mountpod", "other", "missing", "unbound"), false}, "none": {podOf(), false},
	} {
		response := sdktest.Review(t, conn, "inject", request, tc.pod, nil)
		if !response.Allowed || (response.Patch != nil) != tc.want {
			t.Errorf("%s: %+v", name, response)
		}
		if !tc.want {
			continue
		}
		got := patched(t, tc.pod, response.Patch)
		first := got.Spec.InitContainers[0]
		if len(got.Spec.InitContainers) != 2 || first.Image != "client:1" || *first.RestartPolicy != corev1.ContainerRestartPolicyAlways ||
			len(got.Spec.Volumes) != len(tc.pod.Spec.Volumes)+2 || got.Spec.Containers[0].Name != "main" || got.Spec.InitContainers[1].Name != "prepare" {
			t.Errorf("%s: %+v", name, got.Spec)
		}
		if again := sdktest.Review(t, conn, "inject", request, got, nil); !again.Allowed || again.Patch != nil {
			t.Errorf("%s: a pod that has it: %s", name, again.Patch)
		}
		if ok := sdktest.Review(t, conn, "pods", request, got, nil); !ok.Allowed {
			t.Errorf("%s: the pod is refused: %s", name, ok.Result.Message)
		}
	}
}

func patched(t *testing.T, pod *corev1.Pod, text []byte) *corev1.Pod {
	t.Helper()
	before, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply(before)
	if err != nil {
		t.Fatal(err)
	}
	var got corev1.Pod
	if err := json.Unmarshal(after, &got); err != nil {
		t.Fatal(err)
	}
	return &got
}

// TestGuard: no other container has the volumes of the client, whatever the pod's author writes.
func TestGuard(t *testing.T) {
	i := injector{settings: settings{Image: "client:1"}}
	good := podOf()
	if err := i.add(&good.Spec); err != nil {
		t.Fatal(err)
	}
	conn := sdktest.Connect(t, plugin(func() (kubernetes.Interface, error) { return fake.NewClientset(), nil }).Register)
	for name, change := range map[string]func(*corev1.PodSpec){
		"mounts the volume kubelith-fuse,": func(p *corev1.PodSpec) {
			p.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "kubelith-fuse", MountPath: "/a"}}
		},
		"main mounts the volume kubelith-fuse-buffers": func(p *corev1.PodSpec) {
			p.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "kubelith-fuse-buffers", MountPath: "/a"}}
		},
		"prepare mounts": func(p *corev1.PodSpec) {
			p.InitContainers[1].VolumeMounts = []corev1.VolumeMount{{Name: "kubelith-fuse-buffers", MountPath: "/a"}}
		},
		"debug mounts": func(p *corev1.PodSpec) {
			p.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug",
				VolumeMounts: []corev1.VolumeMount{{Name: "kubelith-fuse-buffers", MountPath: "/a"}}}}}
		},
		"without a claim": func(p *corev1.PodSpec) { p.Volumes[0].Name = "mine" },
	} {
		pod := good.DeepCopy()
		change(&pod.Spec)
		for _, hook := range []string{"pods", "ephemeral"} {
			if r := sdktest.Review(t, conn, hook, admissionv1.AdmissionRequest{}, pod, nil); r.Allowed || !strings.Contains(r.Result.Message, name) {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
	for _, change := range []func(*corev1.PodSpec){
		func(p *corev1.PodSpec) { p.Containers[0].Name = "kubelith-fuse" },
		func(p *corev1.PodSpec) { p.Volumes = i.volumes()[1:] },
	} {
		pod := podOf()
		change(&pod.Spec)
		if err := i.add(&pod.Spec); err == nil || !strings.Contains(err.Error(), "remove it from the pod") {
			t.Errorf("a name that is taken: %v", err)
		}
	}
	if c := i.container(); c.SecurityContext.Privileged != nil || len(c.SecurityContext.Capabilities.Add) > 0 || len(c.Env) > 0 ||
		slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPropagation != nil }) {
		t.Errorf("the client has rights: %+v", c)
	}
}
