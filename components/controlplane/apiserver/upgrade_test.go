package apiserver

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"kubelith.io/kubelith/base/client"
)

// earlier are our objects as the release a342403 created them, by kind and name. It neither marked nor changed any.
func earlier(t *testing.T) map[string]runtime.Object {
	t.Helper()
	text, err := os.ReadFile("testdata/own-a342403.json")
	if err != nil {
		t.Fatal(err)
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	all := map[string]runtime.Object{}
	for _, r := range raw {
		object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(r, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		meta := object.(metav1.Object)
		meta.SetUID(types.UID("uid of " + meta.GetName()))
		all[kind.Kind+" "+key(meta)] = object
	}
	return all
}

// TestUnmarked: every object of releases without the mark is known by its name.
func TestUnmarked(t *testing.T) {
	objects := earlier(t)
	for name := range objects {
		if !slices.Contains(unmarked(), name) {
			t.Errorf("%s is not in the list", name)
		}
	}
	if len(unmarked()) != len(objects) {
		t.Errorf("%d objects are in the list, there were %d", len(unmarked()), len(objects))
	}
}

// TestUpgrade: after the start of another release our objects are that release's: wider, narrower, bound again or gone.
// What operators have created or taken over stays, as do rights that they have added to upstream's roles.
func TestUpgrade(t *testing.T) {
	objects := earlier(t)
	clusterRole := func(name string) *rbacv1.ClusterRole { return objects["ClusterRole "+name].(*rbacv1.ClusterRole) }
	everything := rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}
	add := func(kind string, object runtime.Object) { objects[kind+" "+key(object.(metav1.Object))] = object }

	// This release narrows these, ...
	wide, writes := clusterRole("kubelith:agent"), clusterRole(client.Approver)
	wide.Rules = append(wide.Rules, everything)
	writes.Rules[0].Verbs = append(writes.Rules[0].Verbs, "escalate")
	many := objects["RoleBinding kube-system/"+client.Token].(*rbacv1.RoleBinding)
	many.Subjects = append(many.Subjects, subject(rbacv1.GroupKind, "system:authenticated"))
	// ... widens this one, ...
	narrow := clusterRole(client.DNS)
	narrow.Rules = narrow.Rules[:1]
	// ... binds another role, ...
	bound := objects["ClusterRoleBinding "+client.Metrics].(*rbacv1.ClusterRoleBinding)
	bound.RoleRef.Name = "cluster-admin"
	// ... ranks requests in another way, and has two objects less, of which one is marked.
	objects["FlowSchema kubelith-loopback"].(*flowcontrolv1.FlowSchema).Spec.MatchingPrecedence = 9000
	marked := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "kubelith:renamed", UID: "1", Labels: map[string]string{markLabel: "true"}}, Rules: []rbacv1.PolicyRule{everything}}
	add("ClusterRole", marked)
	wanted := slices.DeleteFunc(wantedObjects(&Options{}, true), func(w wanted) bool { return w.object.(metav1.Object).GetName() == "kubelith:node-proxier" })

	// An operator's.
	kept := clusterRole(client.ServiceLB)
	kept.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
	kept.Rules = []rbacv1.PolicyRule{everything}
	taken := marked.DeepCopy()
	taken.Name, taken.Annotations = "kubelith:taken", kept.Annotations
	add("ClusterRole", taken)
	mine := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "system:kubelith:plugin:mine", UID: "3"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{subject(rbacv1.UserKind, client.PluginPrefix+"mine")}}
	add("ClusterRoleBinding", mine)
	upstream := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:node-proxier", UID: "4"}, Rules: []rbacv1.PolicyRule{everything}}
	add("ClusterRole", upstream)

	var all []runtime.Object
	for _, object := range objects {
		all = append(all, object)
	}
	cs, ctx := fake.NewClientset(all...), t.Context()
	changes, failed := compare(ctx, clientsOf(cs), wanted)
	for _, c := range changes {
		if err := c.write(ctx); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		t.Fatal(failed)
	}

	rules := func(name string) []rbacv1.PolicyRule {
		role, err := cs.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return role.Rules
	}
	for _, w := range wanted {
		if role, ok := w.object.(*rbacv1.ClusterRole); ok && w.exact && role.Name != kept.Name && !equality.Semantic.DeepEqual(rules(role.Name), role.Rules) {
			t.Errorf("%s has %v, want %v", role.Name, rules(role.Name), role.Rules)
		}
	}
	if b, err := cs.RbacV1().RoleBindings("kube-system").Get(ctx, client.Token, metav1.GetOptions{}); err != nil || len(b.Subjects) != 1 || b.Labels[markLabel] != "true" {
		t.Errorf("the subject that is not wanted any more: %v, %v", b, err)
	}
	if b, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, client.Metrics, metav1.GetOptions{}); err != nil || b.RoleRef.Name != client.Metrics {
		t.Errorf("the binding of another role: %v, %v", b, err)
	}
	if f, err := cs.FlowcontrolV1().FlowSchemas().Get(ctx, "kubelith-loopback", metav1.GetOptions{}); err != nil || f.Spec.MatchingPrecedence != 2 {
		t.Errorf("the flow schema: %v, %v", f, err)
	}
	if _, err := cs.RbacV1().ClusterRoles().Get(ctx, marked.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the marked role of an earlier release: %v", err)
	}
	if _, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, "kubelith:node-proxier", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the unmarked binding of an earlier release: %v", err)
	}
	for _, name := range []string{kept.Name, taken.Name} {
		if got := rules(name); len(got) != 1 || got[0].Verbs[0] != "*" {
			t.Errorf("%s, which an operator keeps, has %v", name, got)
		}
	}
	if _, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, mine.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("an operator's binding: %v", err)
	}
	if got := rules(upstream.Name); got[0].Verbs[0] != "*" {
		t.Errorf("what an operator added to a role of upstream's is gone: %v", got)
	}

	// Once is enough.
	if changes, failed := compare(ctx, clientsOf(cs), wanted); len(changes)+len(failed) > 0 {
		var names []string
		for _, c := range changes {
			names = append(names, c.verb+" "+c.object)
		}
		t.Errorf("a second time: %s, %v", strings.Join(names, ", "), failed)
	}
}
