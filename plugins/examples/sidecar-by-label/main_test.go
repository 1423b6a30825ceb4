package main

import (
	"encoding/json"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

func TestSidecar(t *testing.T) {
	conn := sdktest.Connect(t, plugin().Register)
	d, err := sdktest.Describe(t, conn, "sidecar-by-label", `{"label":"ship","container":{"name":"shipper","image":"ship:1"}}`)
	if err != nil {
		t.Fatal(err)
	}
	var hook registrationv1.MutatingWebhook
	if err := json.Unmarshal(d.GetAdmission().GetMutating()[0], &hook); err != nil || hook.ObjectSelector.MatchExpressions[0].Key != "ship" {
		t.Errorf("%+v, %v", hook, err)
	}
	pod := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	response := sdktest.Review(t, conn, "inject", admissionv1.AdmissionRequest{}, pod, nil)
	before, _ := json.Marshal(pod)
	patch, err := jsonpatch.DecodePatch(response.Patch)
	if err != nil {
		t.Fatalf("%s: %v", response.Patch, err)
	}
	after, err := patch.Apply(before)
	if err != nil {
		t.Fatal(err)
	}
	var got corev1.Pod
	if err := json.Unmarshal(after, &got); err != nil || len(got.Spec.Containers) != 2 || got.Spec.Containers[1].Image != "ship:1" || got.Spec.Containers[0].Name != "main" {
		t.Errorf("%+v, %v", got.Spec.Containers, err)
	}
	if again := sdktest.Review(t, conn, "inject", admissionv1.AdmissionRequest{}, got, nil); !again.Allowed || again.Patch != nil {
		t.Errorf("a pod that has it: %s", again.Patch)
	}
}

func TestSettings(t *testing.T) {
	for config, says := range map[string]string{
		`{"label":"ship"}`: "container.name",
		`{"labels":"x"}`:   `unknown field "labels"`,
	} {
		if _, err := sdktest.Describe(t, sdktest.Connect(t, plugin().Register), "x", config); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", config, err)
		}
	}
}
