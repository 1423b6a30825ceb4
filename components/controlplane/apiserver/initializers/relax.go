package initializers

import (
	"errors"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper/qos"
)

// No controller acts on a hidden object, so an initializer may change what is immutable later: the containers of a pod,
// the template of a Job. Upstream compares an update with the object that storage returned. If the comparison refuses
// only such changes, storage repeats the update, and admission gives the stored object the new content before it is
// compared.

// onlyImmutable reports whether an update is invalid for no other reason than that fields are immutable.
func onlyImmutable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonInvalid || status.Status().Details == nil {
		return false
	}
	causes := status.Status().Details.Causes
	for _, c := range causes {
		immutable := c.Type == metav1.CauseTypeForbidden || strings.Contains(c.Message, "immutable") || strings.Contains(c.Message, "cannot change")
		if !immutable {
			return false
		}
	}
	return len(causes) > 0
}

// relax gives the stored object the content of the new one; metadata and status stay. Custom resources keep their own
// rules for changes.
func relax(stored, next runtime.Object) {
	into, from := reflect.ValueOf(stored), reflect.ValueOf(next.DeepCopyObject())
	if into.Type() != from.Type() || into.Kind() != reflect.Pointer || into.Elem().Kind() != reflect.Struct {
		return
	}
	into, from = into.Elem(), from.Elem()
	for i := range into.NumField() {
		switch into.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
		default:
			if into.Field(i).CanSet() {
				into.Field(i).Set(from.Field(i))
			}
		}
	}
	if pod, ok := stored.(*core.Pod); ok { // what upstream computes of a new pod's containers
		pod.Status.QOSClass = qos.ComputePodQOS(pod)
	}
}
