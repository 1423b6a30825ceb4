// The plugin sidecar-by-label adds a container to each new Pod that has a label.
//
//	plugins:
//	- name: sidecar-by-label
//	  kind: admission
//	  path: /usr/local/lib/kubelith/sidecar-by-label
//	  config:
//	    label: log-shipper
//	    container: {name: log-shipper, image: registry.example.com/log-shipper:1}
package main

import (
	"context"
	"errors"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/plugins/sdk"
)

func main() { sdk.ServeAdmission(plugin()) }

// settings are the operator's `config:`.
type settings struct {
	Label     string           `json:"label"`
	Container corev1.Container `json:"container"`
}

func plugin() sdk.Admission {
	s := settings{Label: "sidecar"}
	hook := sdk.MutatingHook{
		Webhook: registrationv1.MutatingWebhook{Name: "inject", Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{registrationv1.Create},
			Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
		Review: func(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response { return inject(r, s.Container) },
	}
	hooks := []sdk.MutatingHook{hook}
	return sdk.Admission{Version: "1", Mutating: hooks, ProtobufObjects: true, Configure: func(c sdk.Config) error {
		if err := c.Decode(&s); err != nil {
			return err
		}
		if s.Label == "" || s.Container.Name == "" || s.Container.Image == "" {
			return errors.New("config: label, container.name and container.image must be set")
		}
		labelled := metav1.LabelSelectorRequirement{Key: s.Label, Operator: metav1.LabelSelectorOpExists}
		hooks[0].Webhook.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{labelled}}
		return nil
	}}
}

func inject(r *admissionv1.AdmissionRequest, sidecar corev1.Container) sdk.Response {
	pod, err := sdk.Object[corev1.Pod](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == sidecar.Name }) {
		pod.Spec.Containers = append(pod.Spec.Containers, sidecar)
	}
	return sdk.Patch(r, pod)
}
