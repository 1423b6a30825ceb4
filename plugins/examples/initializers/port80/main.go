// The initializer port80.example.com lets the first container of each new pod that exposes no port expose port 80.
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/plugins/sdk/initializer"
)

func main() {
	initializer.Main(initializer.For("port80.example.com", corev1.SchemeGroupVersion.WithResource("pods"), expose))
}

func expose(_ context.Context, pod *corev1.Pod) error {
	for _, c := range pod.Spec.Containers {
		if len(c.Ports) > 0 {
			return nil
		}
	}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}
	return nil
}
