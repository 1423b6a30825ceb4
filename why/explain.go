package why

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Target names the requested object.
type Target struct {
	Kind     schema.GroupVersionKind
	Resource schema.GroupVersionResource
	// Namespace is empty for an object of the cluster.
	Namespace, Name string
}

// Object is the target as an answer names it.
func (t Target) Object() Object {
	return Object{Type: typeOf(t.Kind.GroupKind()), Namespace: t.Namespace, Name: t.Name}
}

// typeOf is the type of a kind as kubectl names it.
func typeOf(k schema.GroupKind) string {
	name := strings.ToLower(k.Kind)
	if strings.Contains(k.Group, ".") && !strings.HasSuffix(k.Group, ".k8s.io") {
		name += "." + k.Group
	}
	return name
}

// Explain reports why the target is not as it should be, or that it is. An object that does not exist is an answer, not
// an error. An error is one line that a user can act on.
func Explain(ctx context.Context, r *Reader, t Target) (*Answer, error) {
	a := &Answer{APIVersion: Version, Object: t.Object()}
	object, err := once(r, fmt.Sprintf("get %s in namespace %q", a.Object, t.Namespace), func() (*unstructured.Unstructured, error) {
		return r.Dynamic.Resource(t.Resource).Namespace(t.Namespace).Get(ctx, t.Name, noGet)
	})
	if apierrors.IsNotFound(err) {
		a.Finding = *r.absent(ctx, t)
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	a.Object.UID = string(object.GetUID())
	f, err := explain(ctx, r, t, object)
	if apierrors.IsNotFound(err) {
		f, err = r.absent(ctx, t), nil // gone meanwhile
	}
	if err != nil {
		return nil, err
	}
	r.took(ctx, t, f)
	a.Finding, a.Unread = *f, r.unread
	if a.Evidence == nil {
		a.Evidence = []Evidence{}
	}
	return a, nil
}

func explain(ctx context.Context, r *Reader, t Target, object *unstructured.Unstructured) (*Finding, error) {
	k := kinds()[t.Kind.GroupKind()]
	if object.GetDeletionTimestamp() != nil && !k.deletion {
		return deletion(r, t.Object(), object), nil
	}
	if k.explain != nil {
		if f, err := k.explain(ctx, r, t.Namespace, t.Name); f != nil || err != nil {
			return f, err
		}
	}
	return generic(ctx, r, t.Object(), object), nil
}
