package manifests

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// pruneAnnotation on an object sets whether it is deleted when it is no longer in any file: "true" or "false".
const pruneAnnotation = "kubelith.io/prune"

var claimKind = schema.GroupKind{Kind: "PersistentVolumeClaim"}

// kept reports whether an object outlives its file. By default that is an object whose deletion would delete the data
// of others: a file that was moved away for a moment can be put back, the data of a volume cannot.
func kept(object *unstructured.Unstructured) bool {
	switch object.GetAnnotations()[pruneAnnotation] {
	case "true":
		return false
	case "false":
		return true
	}
	switch object.GroupVersionKind().GroupKind() {
	case claimKind, namespaceKind, definitionKind:
		return true
	}
	return false
}
