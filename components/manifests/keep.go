package manifests

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// pruneAnnotation on an object says whether it is deleted when it is in no file any more: "true" or "false".
const pruneAnnotation = "kubelith.io/prune"

var claimKind = schema.GroupKind{Kind: "PersistentVolumeClaim"}

// kept reports whether an object outlives its file. Unless the object says otherwise, what takes data of others with it does: a
// file that was moved away for a moment can be put back, the data of a volume cannot.
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
