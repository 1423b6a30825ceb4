package main

import (
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

func TestDenyEscalatingExec(t *testing.T) {
	privileged := &corev1.SecurityContext{Privileged: ptr.To(true)}
	specs := map[string]corev1.PodSpec{
		"plain":          {Containers: []corev1.Container{{Name: "a", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(false)}}}},
		"host-pid":       {HostPID: true},
		"host-ipc":       {HostIPC: true},
		"privileged":     {Containers: []corev1.Container{{Name: "a"}, {Name: "b", SecurityContext: privileged}}},
		"privileged-old": {InitContainers: []corev1.Container{{Name: "a", SecurityContext: privileged}}},
		"privileged-new": {EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "a", SecurityContext: privileged}}}},
	}
	objects := []runtime.Object{}
	for name, spec := range specs {
		objects = append(objects, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec})
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := fake.NewSimpleDynamicClient(scheme, objects...)
	conn := sdktest.Connect(t, plugin(func() (dynamic.Interface, error) { return client, nil }).Register)
	if _, err := sdktest.Describe(t, conn, "denyescalatingexec", ""); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{
		"plain": "", "host-pid": "host pid", "host-ipc": "host ipc", "privileged": "privileged", "privileged-old": "privileged", "privileged-new": "privileged", "missing": "",
	} {
		request := admissionv1.AdmissionRequest{Namespace: "ns", Name: name, Operation: admissionv1.Connect, SubResource: "exec"}
		r := sdktest.Review(t, conn, "exec", request, corev1.PodExecOptions{Command: []string{"sh"}}, nil)
		if r.Allowed != (says == "") || !r.Allowed && !strings.Contains(r.Result.Message, says) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestNoKubeconfig: a plugin that cannot read pods is refused at its start, not at the first exec.
func TestNoKubeconfig(t *testing.T) {
	conn := sdktest.Connect(t, plugin(func() (dynamic.Interface, error) { return nil, errors.New("no kubeconfig") }).Register)
	if _, err := sdktest.Describe(t, conn, "denyescalatingexec", ""); err == nil || !strings.Contains(err.Error(), "no kubeconfig") {
		t.Error(err)
	}
}
