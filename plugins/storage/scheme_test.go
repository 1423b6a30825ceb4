package storage

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestSharedScheme: while others look types up, the provisioner's library may register them. Without KeepScheme the
// runtime ends this process.
func TestSharedScheme(t *testing.T) {
	KeepScheme()
	registered := make(chan struct{})
	go func() {
		defer close(registered)
		for range 5000 {
			if err := corev1.AddToScheme(scheme.Scheme); err != nil {
				t.Error(err)
			}
		}
	}()
	for done := false; !done; {
		select {
		case <-registered:
			done = true
		default:
			if _, _, err := scheme.Scheme.ObjectKinds(&corev1.Pod{}); err != nil {
				t.Error(err)
			}
		}
	}
	fresh := runtime.NewScheme()
	if err := corev1.AddToScheme(fresh); err != nil || !fresh.Recognizes(corev1.SchemeGroupVersion.WithKind("Pod")) {
		t.Errorf("a scheme without the types does not get them: %v", err)
	}
}
