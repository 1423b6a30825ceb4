// The plugin podpreset adds environment, volumes and mounts to new pods that a PodPreset selects, as the admission
// plugin PodPreset did, which Kubernetes removed in 1.20. The kind PodPreset is the custom resource of crd.yaml.
//
// It reads PodPresets with the kubeconfig that each plugin gets; crd.yaml allows it to.
package main

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
		Mutating: []sdk.MutatingHook{{
			Webhook: registrationv1.MutatingWebhook{Name: "pods", Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}}},
			Review: func(ctx context.Context, r *admissionv1.AdmissionRequest) sdk.Response { return review(ctx, client, r) },
		}},
	}
}

// Annotations of pods, named as upstream's.
const (
	exclude = "podpreset.admission.kubernetes.io/exclude"
	applied = "podpreset.admission.kubernetes.io/podpreset-"
)

func review(ctx context.Context, client dynamic.Interface, r *admissionv1.AdmissionRequest) sdk.Response {
	pod, err := sdk.Object[corev1.Pod](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror || pod.Annotations[exclude] == "true" {
		return sdk.Allow()
	}
	presets, err := selecting(ctx, client, r.Namespace, pod)
	if err != nil {
		return sdk.Fail(err)
	}
	changed := pod.DeepCopy()
	for i := range presets {
		if err := apply(changed, &presets[i]); err != nil {
			// As upstream: a pod that conflicts with a preset starts without any.
			response := sdk.Allow()
			response.Warnings = []string{"no PodPreset is applied: " + err.Error()}
			return response
		}
	}
	return sdk.Patch(r, changed)
}

// selecting returns the presets of a namespace that select a pod.
func selecting(ctx context.Context, client dynamic.Interface, namespace string, pod *corev1.Pod) ([]podPreset, error) {
	list, err := client.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // crd.yaml is not installed
	}
	if err != nil {
		return nil, err
	}
	var found []podPreset
	for _, item := range list.Items {
		var preset podPreset
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &preset); err != nil {
			return nil, err
		}
		selector, err := metav1.LabelSelectorAsSelector(&preset.Spec.Selector)
		if err != nil {
			return nil, err
		}
		if selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, preset)
		}
	}
	return found, nil
}

var resource = schema.GroupVersionResource{Group: "settings.kubelith.io", Version: "v1alpha1", Resource: "podpresets"}
