// The initializer certificate.example.com mounts the Secret test-certificate into the containers of each new pod with
// the label test-certificate=wanted.
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/plugins/sdk/initializer"
)

const name = "test-certificate"

func main() {
	initializer.Main(initializer.For("certificate.example.com", corev1.SchemeGroupVersion.WithResource("pods"), mount))
}

func mount(_ context.Context, pod *corev1.Pod) error {
	if pod.Labels[name] != "wanted" {
		return nil
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name,
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}})
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/etc/test-certificate", ReadOnly: true})
	}
	return nil
}
