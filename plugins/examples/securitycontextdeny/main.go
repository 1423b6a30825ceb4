// The plugin securitycontextdeny refuses pods that set users, groups or SELinux options,
// as the admission plugin SecurityContextDeny did, which Kubernetes removed in 1.30.
// Source of the rules: plugin/pkg/admission/securitycontext/scdeny/admission.go of Kubernetes 1.29.
package main

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/plugins/sdk"
)

func main() { sdk.ServeAdmission(plugin()) }

func plugin() sdk.Admission {
	return sdk.Admission{Version: "1", ProtobufObjects: true, Validating: []sdk.ValidatingHook{{
		Webhook: registrationv1.ValidatingWebhook{Name: "pods", Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
			Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
		Review: review,
	}}}
}

func review(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
	pod, err := sdk.Object[corev1.Pod](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	if field := forbidden(&pod.Spec); field != "" {
		return sdk.Deny(field + " is forbidden")
	}
	return sdk.Allow()
}

// forbidden returns the first forbidden field that the pod sets; empty: none.
func forbidden(spec *corev1.PodSpec) string {
	if c := spec.SecurityContext; c != nil {
		switch {
		case c.SupplementalGroups != nil:
			return "spec.securityContext.supplementalGroups"
		case c.SELinuxOptions != nil:
			return "spec.securityContext.seLinuxOptions"
		case c.RunAsUser != nil:
			return "spec.securityContext.runAsUser"
		case c.FSGroup != nil:
			return "spec.securityContext.fsGroup"
		}
	}
	for _, list := range []struct {
		name       string
		containers []corev1.Container
	}{{"initContainers", spec.InitContainers}, {"containers", spec.Containers}} {
		for i, container := range list.containers {
			at := fmt.Sprintf("spec.%s[%d].securityContext.", list.name, i)
			if c := container.SecurityContext; c != nil && c.SELinuxOptions != nil {
				return at + "seLinuxOptions"
			} else if c != nil && c.RunAsUser != nil {
				return at + "runAsUser"
			}
		}
	}
	return ""
}
