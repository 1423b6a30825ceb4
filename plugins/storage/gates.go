package storage

import (
	// Whatever the order of these lines, the first is initialised first: see its comment.
	_ "a.kubelith.io/csigates"
	_ "k8s.io/kubernetes/pkg/features" // gates that the sidecars' libraries read
)
