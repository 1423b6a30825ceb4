// The plugin denyescalatingexec refuses exec and attach to pods that could escape from their container: privileged
// ones, and those in the host's PID or IPC namespace. It is what the admission plugin DenyEscalatingExec did, which
// Kubernetes removed in 1.21.
// Source of the rules: plugin/pkg/admission/exec/admission.go of Kubernetes 1.20.
//
// It reads the pod with the kubeconfig that each plugin gets; rbac.yaml allows it to.
package main

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/cluster"
)

func main() { sdk.ServeAdmission(plugin(cluster.Dynamic)) }

func plugin(connect func() (dynamic.Interface, error)) sdk.Admission {
	var client dynamic.Interface
	return sdk.Admission{
		Version: "1", ProtobufObjects: true,
		Configure: func(c sdk.Config) (err error) {
			client, err = connect()
			return err
		},
		Validating: []sdk.ValidatingHook{{
			Webhook: registrationv1.ValidatingWebhook{Name: "exec", Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Connect},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/exec", "pods/attach"}},
			}}},
			Review: func(ctx context.Context, r *admissionv1.AdmissionRequest) sdk.Response { return review(ctx, client, r) },
		}},
	}
}

func review(ctx context.Context, client dynamic.Interface, r *admissionv1.AdmissionRequest) sdk.Response {
	object, err := client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return sdk.Allow() // the request fails anyway
	}
	if err != nil {
		return sdk.Fail(err)
	}
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &pod); err != nil {
		return sdk.Fail(err)
	}
	switch {
	case pod.Spec.HostPID:
		return sdk.Deny("cannot exec into or attach to a container using host pid")
	case pod.Spec.HostIPC:
		return sdk.Deny("cannot exec into or attach to a container using host ipc")
	case privileged(&pod.Spec):
		return sdk.Deny("cannot exec into or attach to a privileged container")
	}
	return sdk.Allow()
}

// privileged reports whether any container of the pod is privileged, including init and ephemeral ones.
func privileged(spec *corev1.PodSpec) bool {
	is := func(c *corev1.SecurityContext) bool { return c != nil && c.Privileged != nil && *c.Privileged }
	for _, c := range append(append([]corev1.Container{}, spec.InitContainers...), spec.Containers...) {
		if is(c.SecurityContext) {
			return true
		}
	}
	for _, c := range spec.EphemeralContainers {
		if is(c.SecurityContext) {
			return true
		}
	}
	return false
}
