package why

import (
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func role(namespace, name string, rules ...rbacv1.PolicyRule) runtime.Object {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: rules}
}

func bind(namespace, name, to string, subjects ...rbacv1.Subject) runtime.Object {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: to},
		Subjects:   subjects,
	}
}

func aUser(name string) rbacv1.Subject { return rbacv1.Subject{Kind: rbacv1.UserKind, Name: name} }

func rule(verbs, group, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: []string{group}, Resources: strings.Split(resources, ","), ResourceNames: names}
}

// TestExplainAccess: which of the rules and bindings is reported as nearest to a denied request.
func TestExplainAccess(t *testing.T) {
	const account = "system:serviceaccount:a:robot"
	list := Access{User: "ann", Verb: "list", Resource: "pods", Namespace: "a"}
	logs := Access{User: "ann", Verb: "get", Resource: "pods", Subresource: "log", Namespace: "a"}
	deployments := Access{User: "ann", Verb: "list", Group: "apps", Resource: "deployments", Namespace: "a"}
	getOne := Access{User: "ann", Verb: "get", Resource: "secrets", Name: "one", Namespace: "a"}
	readers := role("a", "readers", rule("get,list", "", "pods"))
	for name, c := range map[string]struct {
		request Access
		objects []runtime.Object
		code    Code
		says    string
	}{
		"no binding":            {list, []runtime.Object{readers}, AccessDenied, "no rule of its roles is about pods"},
		"another resource":      {list, []runtime.Object{role("a", "r", rule("*", "", "services")), bind("a", "b", "r", aUser("ann"))}, AccessDenied, "about pods"},
		"verb":                  {list, []runtime.Object{role("a", "r", rule("get,watch", "", "pods")), bind("a", "b", "r", aUser("ann"))}, VerbMissing, "role/r of rolebinding/b in namespace a allows get, watch, without list"},
		"group":                 {deployments, []runtime.Object{role("a", "r", rule("list", "", "deployments")), bind("a", "b", "r", aUser("ann"))}, GroupMissing, `"apps"`},
		"subresource":           {logs, []runtime.Object{role("a", "r", rule("get", "", "pods")), bind("a", "b", "r", aUser("ann"))}, SubresourceMissing, "pods/log"},
		"names":                 {getOne, []runtime.Object{role("a", "r", rule("get", "", "secrets", "two")), bind("a", "b", "r", aUser("ann"))}, RuleNamesOthers, "two"},
		"all of a named":        {list, []runtime.Object{role("a", "r", rule("list", "", "pods", "two")), bind("a", "b", "r", aUser("ann"))}, RuleNamesOthers, "is about all"},
		"role":                  {list, []runtime.Object{bind("a", "b", "gone", aUser("ann"))}, RoleMissing, "role/gone, which does not exist"},
		"role of someone":       {list, []runtime.Object{bind("a", "b", "gone", aUser("bob"))}, AccessDenied, ""},
		"namespace":             {list, []runtime.Object{role("b", "r", rule("list", "", "pods")), bind("b", "b", "r", aUser("ann"))}, OtherNamespace, "the request is in namespace a"},
		"useless elsewhere":     {list, []runtime.Object{role("b", "r", rule("get", "", "pods")), bind("b", "b", "r", aUser("ann"))}, AccessDenied, ""},
		"case":                  {list, []runtime.Object{readers, bind("a", "b", "readers", aUser("Ann"))}, SubjectDiffers, "case"},
		"group for user":        {list, []runtime.Object{readers, bind("a", "b", "readers", rbacv1.Subject{Kind: rbacv1.GroupKind, Name: "ann"})}, SubjectDiffers, "the group ann"},
		"account for user":      {list, []runtime.Object{readers, bind("a", "b", "readers", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: "ann"})}, SubjectDiffers, "ServiceAccount a/ann"},
		"account's namespace":   {Access{User: account, Verb: "list", Resource: "pods", Namespace: "a"}, []runtime.Object{readers, bind("a", "b", "readers", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "b", Name: "robot"})}, SubjectDiffers, "in namespace b"},
		"account's group, verb": {Access{User: account, Verb: "delete", Resource: "pods", Namespace: "a"}, []runtime.Object{readers, bind("a", "b", "readers", rbacv1.Subject{Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:a"})}, VerbMissing, "get, list, without delete"},
		"path":                  {Access{User: "ann", Verb: "get", URL: "/metrics"}, nil, AccessDenied, "/metrics"},
	} {
		t.Run(name, func(t *testing.T) {
			r, client := reader(t, c.objects...)
			client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
				review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
				review.Status.Reason = "no RBAC policy matched"
				return true, review, nil
			})
			a, err := ExplainAccess(t.Context(), r, c.request)
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != Broken || a.Code != c.code || !strings.Contains(a.Cause, c.says) || len(a.Remedy) == 0 {
				t.Errorf("%s %s: %s; want %s with %q", a.Status, a.Code, a.Cause, c.code, c.says)
			}
		})
	}
}

// TestExplainAccessAllowed: the API server's own reason is the evidence, and the groups that it adds are requested.
func TestExplainAccessAllowed(t *testing.T) {
	r, client := reader(t)
	var groups []string
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		groups = review.Spec.Groups
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "RBAC: allowed by x"}
		return true, review, nil
	})
	a, err := ExplainAccess(t.Context(), r, Access{User: "system:serviceaccount:a:robot", Groups: []string{"ops"}, Verb: "get", Group: "apps", Resource: "deployments", Name: "web", Namespace: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if a.Status != Healthy || a.Code != AccessAllowed || a.Cause != "system:serviceaccount:a:robot may get deployments.apps web in namespace a" || a.Evidence[0].Text != "RBAC: allowed by x" {
		t.Errorf("%+v", a)
	}
	if want := "ops system:serviceaccounts system:serviceaccounts:a system:authenticated"; strings.Join(groups, " ") != want {
		t.Errorf("groups %q", groups)
	}
}
