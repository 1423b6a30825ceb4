package why

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The messages are those of the namespace controller.
func TestNamespaces(t *testing.T) {
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings", Finalizers: []string{"example.org/backup"}}, TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}}
	c := func(kind corev1.NamespaceConditionType, status corev1.ConditionStatus, message string) corev1.NamespaceCondition {
		return corev1.NamespaceCondition{Type: kind, Status: status, Message: message}
	}
	remain := c(corev1.NamespaceContentRemaining, "True", "Some resources are remaining: configmaps. has 1 resource instances")
	finalizers := c(corev1.NamespaceFinalizersRemaining, "True", "Some content in the namespace has finalizers remaining: example.org/backup in 1 resource instances")
	for name, x := range map[string]struct {
		deleted    time.Duration
		conditions []corev1.NamespaceCondition
		status     Status
		code       Code
		proof      string
	}{
		"active":           {0, nil, Healthy, OK, "Active"},
		"just deleted":     {time.Second, []corev1.NamespaceCondition{remain, finalizers}, Progressing, Deleting, "deletion was requested"},
		"held":             {time.Minute, []corev1.NamespaceCondition{remain, finalizers}, Broken, NamespaceRemains, "configmap/settings .metadata.finalizers: example.org/backup"},
		"pods end":         {time.Minute, []corev1.NamespaceCondition{c(corev1.NamespaceContentRemaining, "True", "Some resources are remaining: pods. has 1 resource instances"), c(corev1.NamespaceFinalizersRemaining, "False", "")}, Progressing, Deleting, "pods. has 1"},
		"a group is gone":  {time.Minute, []corev1.NamespaceCondition{c(corev1.NamespaceDeletionDiscoveryFailure, "True", "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: moon.example.org/v1: stale GroupVersion discovery: moon.example.org/v1")}, Broken, APIUnavailable, "moon.example.org/v1"},
		"a deletion fails": {time.Minute, []corev1.NamespaceCondition{c(corev1.NamespaceDeletionContentFailure, "True", `Failed to delete all resource types, 1 remaining: admission webhook "x" denied the request`)}, Broken, NamespaceRemains, "denied the request"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "uid-shop", CreationTimestamp: before(time.Hour)},
				Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive, Conditions: x.conditions}}
			if x.deleted > 0 {
				at := before(x.deleted)
				ns.DeletionTimestamp, ns.Status.Phase = &at, corev1.NamespaceTerminating
			}
			r, _ := reader(t, []runtime.Object{ns, held}...)
			a := ask(t, r, target(corev1.SchemeGroupVersion.WithKind("Namespace"), "namespaces", "", "shop"))
			if a.Status != x.status || a.Code != x.code || !a.proves(x.proof) {
				t.Errorf("want %s %s with %q, got %+v", x.status, x.code, x.proof, a)
			}
		})
	}
}
