package storage

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// KeepScheme keeps the provisioner's library from writing into a scheme that the whole process reads:
// NewProvisionController of sig-storage-lib-external-provisioner registers the core types in client-go's, which has
// them, each time it is called, and a decoder that looks a type up at that moment ends the process (concurrent map read
// and map write). Schemes that do not have the types get them as before.
//
// Upstream has the function in a variable. It is replaced once, before any component runs.
var KeepScheme = sync.OnceFunc(func() {
	add := corev1.AddToScheme
	corev1.AddToScheme = func(s *runtime.Scheme) error {
		if s.Recognizes(corev1.SchemeGroupVersion.WithKind("Pod")) {
			return nil
		}
		return add(s)
	}
})
