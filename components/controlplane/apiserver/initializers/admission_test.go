package initializers

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/lifecycle"
)

// TestHiding: the annotation does not bypass the right to hide an object, before there are Initializers and with them.
func TestHiding(t *testing.T) {
	i := New(logrus.New(), new(lifecycle.Goroutines))
	i.configurations.setReady()
	may := authorizer.DecisionDeny
	p := &plugin{all: i, rights: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) { return may, "", nil })}
	admit := func(ctx context.Context, name string) error {
		object := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{name: `{"pending":[{"name":"a.example.com"}]}`}}}
		return p.Admit(ctx, admission.NewAttributesRecord(object, nil, corev1.SchemeGroupVersion.WithKind("ConfigMap"), "default", "a",
			corev1.SchemeGroupVersion.WithResource("configmaps"), "", admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "u"}), nil)
	}
	active := withRequest(t.Context(), &request{})
	for _, tc := range []struct {
		what, annotation string
		ctx              context.Context
		may              authorizer.Decision
		allowed          bool
	}{
		{"idle", Annotation, t.Context(), authorizer.DecisionAllow, false},
		{"idle, a change", changeAnnotation, t.Context(), authorizer.DecisionAllow, false},
		{"without the right", Annotation, active, authorizer.DecisionDeny, false},
		{"with the right", Annotation, active, authorizer.DecisionAllow, true},
		{"another annotation", "a", t.Context(), authorizer.DecisionDeny, true},
	} {
		may = tc.may
		if err := admit(tc.ctx, tc.annotation); (err == nil) != tc.allowed || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", tc.what, err)
		}
	}
}
