package main

import (
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

// TestSecurityContextDeny has the cases of upstream's test of the plugin that was removed.
func TestSecurityContextDeny(t *testing.T) {
	conn := sdktest.Connect(t, plugin().Register)
	of := func(c corev1.SecurityContext) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: &c}}}
	}
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		says string // empty: allowed
	}{
		{"nothing", corev1.PodSpec{Containers: []corev1.Container{{}}}, ""},
		{"empty contexts", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{}, Containers: []corev1.Container{{SecurityContext: &corev1.SecurityContext{}}}}, ""},
		{"privileged", of(corev1.SecurityContext{Privileged: ptr.To(false)}), ""},
		{"capabilities", of(corev1.SecurityContext{Capabilities: &corev1.Capabilities{}}), ""},
		{"user", of(corev1.SecurityContext{RunAsUser: ptr.To[int64](1)}), "spec.containers[0].securityContext.runAsUser is forbidden"},
		{"SELinux", of(corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}}), "spec.containers[0].securityContext.seLinuxOptions is forbidden"},
		{"user of an init container", corev1.PodSpec{InitContainers: []corev1.Container{{}, {SecurityContext: &corev1.SecurityContext{RunAsUser: ptr.To[int64](1)}}}},
			"spec.initContainers[1].securityContext.runAsUser is forbidden"},
		{"user of the pod", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1)}}, "spec.securityContext.runAsUser is forbidden"},
		{"SELinux of the pod", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}}}, "spec.securityContext.seLinuxOptions is forbidden"},
		{"groups", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{SupplementalGroups: []int64{1}}}, "spec.securityContext.supplementalGroups is forbidden"},
		{"group of files", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr.To[int64](1)}}, "spec.securityContext.fsGroup is forbidden"},
	} {
		r := sdktest.Review(t, conn, "pods", admissionv1.AdmissionRequest{}, corev1.Pod{Spec: tc.spec}, nil)
		if r.Allowed != (tc.says == "") || !r.Allowed && r.Result.Message != tc.says {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
}
