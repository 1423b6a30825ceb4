package apiserver

import (
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/names"
)

// TestAdministrators: the admin kubeconfig may do everything, by a binding that can be taken away and stays so over a
// start; what is in system:masters can do so without.
func TestAdministrators(t *testing.T) {
	c := serve(t)
	admin, master := clientFor(t, c.Config("kubelith-admin", names.Admins)), clientFor(t, c.Config("kubelith-super-admin", "system:masters"))
	may := func(cs kubernetes.Interface, want bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); allowed(t, cs, "*", "*", "*", "", "") != want; {
			if time.Now().After(deadline) {
				t.Fatalf("may do everything: %v", !want)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	may(admin, true)
	bindings := master.RbacV1().ClusterRoleBindings()
	b, err := bindings.Get(t.Context(), names.Admins, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := b.DeepCopy()
	b.Subjects = nil
	b.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
	if _, err := bindings.Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	may(admin, false)
	may(master, true)
	changes := func() (ours int) {
		t.Helper()
		all, failed := compare(t.Context(), clientsFor(t, c.Config("kubelith-super-admin", "system:masters")), wantedObjects(&Options{}, true))
		if len(failed) > 0 {
			t.Fatal(failed)
		}
		for _, change := range all {
			if change.object == "ClusterRoleBinding "+names.Admins {
				ours++
			}
		}
		return ours
	}
	if changes() != 0 {
		t.Error("the next start gives the rights back")
	}
	if err := bindings.Delete(t.Context(), names.Admins, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually := time.Now().Add(10 * time.Second)
	for changes() != 1 {
		if time.Now().After(eventually) {
			t.Fatal("a binding that was deleted does not come back with the next start")
		}
		time.Sleep(10 * time.Millisecond)
	}
	before.ResourceVersion, before.UID = "", ""
	if _, err := bindings.Create(t.Context(), before, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	may(admin, true)
}
