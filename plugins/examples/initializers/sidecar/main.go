// The initializer sidecar.example.com puts a container beside those of each new pod that requests it with the
// annotation sidecar.example.com/image.
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/plugins/sdk/initializer"
)

func main() {
	initializer.Main(initializer.For("sidecar.example.com", corev1.SchemeGroupVersion.WithResource("pods"), inject))
}

func inject(_ context.Context, pod *corev1.Pod) error {
	if image := pod.Annotations["sidecar.example.com/image"]; image != "" {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "sidecar", Image: image})
	}
	return nil
}
