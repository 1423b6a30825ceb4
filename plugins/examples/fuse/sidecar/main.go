// The plugin fuse-sidecar is an admission plugin: it puts the FUSE client of the storage plugin fuse beside the
// containers of each new Pod that uses a claim of a StorageClass with mode: sidecar. docs/older-ways.md describes it
// ("FUSE volumes"), package driver what the client gets.
//
//	plugins:
//	- name: fuse-sidecar
//	  kind: admission
//	  path: /usr/local/lib/kubelith/fuse-sidecar
//	  config:
//	    image: registry.example.com/fuse:1
//	    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 256Mi}}
//
// It reads claims, volumes and StorageClasses with the kubeconfig that each plugin gets; manifest.yaml allows it to.
package main

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/plugins/examples/fuse/driver"
	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/cluster"
)

func main() { sdk.ServeAdmission(plugin(connect)) }

func connect() (kubernetes.Interface, error) {
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// settings are the operator's `config:`.
type settings struct {
	// Image of the client. It has the program of the plugin fuse as /fuse.
	Image string `json:"image"`
	// Resources of the client.
	Resources corev1.ResourceRequirements `json:"resources"`
}

func plugin(connect func() (kubernetes.Interface, error)) sdk.Admission {
	i := injector{settings: settings{Image: driver.Image, Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	}}}
	rule := func(operation registrationv1.OperationType, name string) []registrationv1.RuleWithOperations {
		return []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{operation},
			Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{name}},
		}}
	}
	return sdk.Admission{
		Version: driver.Version, ProtobufObjects: true,
		Configure: func(c sdk.Config) (err error) {
			if err := c.Decode(&i.settings); err != nil {
				return err
			}
			i.client, err = connect()
			return err
		},
		Mutating: []sdk.MutatingHook{{
			Webhook: registrationv1.MutatingWebhook{Name: "inject", Rules: rule(registrationv1.Create, "pods")},
			Review:  i.inject,
		}},
		Validating: []sdk.ValidatingHook{{
			Webhook: registrationv1.ValidatingWebhook{Name: "pods", Rules: rule(registrationv1.Create, "pods")},
			Review:  guard,
		}, {
			Webhook: registrationv1.ValidatingWebhook{Name: "ephemeral", Rules: rule(registrationv1.Update, "pods/ephemeralcontainers")},
			Review:  guard,
		}},
	}
}

// guard refuses pods in which another container than the client has the client's volumes: the objects of the pod's
// volumes without the permissions of files, and what is not uploaded yet.
func guard(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
	pod, err := sdk.Object[corev1.Pod](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	if reason := misuse(&pod.Spec); reason != "" {
		return sdk.Deny(reason)
	}
	return sdk.Allow()
}
