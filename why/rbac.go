package why

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"

	"kubelith.io/kubelith/base/oneline"
)

// Access is a request that a user makes, or would make.
type Access struct {
	User   string
	Groups []string // in addition to those that the API server gives every user of its kind
	Verb   string
	// Group, Resource, Subresource, Namespace and Name are as in a SelfSubjectAccessReview; Namespace is empty for an
	// object of the cluster, or all namespaces, and Name for all objects.
	Group, Resource, Subresource, Namespace, Name string
	// URL is a path such as /metrics, instead of a resource.
	URL string
}

// allGroups are the user's groups with those that the API server adds.
// Source: k8s.io/apiserver/pkg/authentication/serviceaccount, MakeGroupNames; group.NewAuthenticatedGroupAdder
func (a Access) allGroups() []string {
	groups := slices.Clone(a.Groups)
	if namespace, _, err := serviceaccount.SplitUsername(a.User); err == nil {
		groups = append(groups, serviceaccount.MakeGroupNames(namespace)...)
	}
	if a.User == user.Anonymous {
		groups = append(groups, user.AllUnauthenticated)
	} else {
		groups = append(groups, user.AllAuthenticated)
	}
	return groups
}

// resource is the resource as rules name it: pods/log.
func (a Access) resource() string {
	return strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
}

// String returns what is done: list deployments.apps in namespace shop.
func (a Access) String() string {
	if a.URL != "" {
		return a.Verb + " " + a.URL
	}
	text := a.Verb + " " + strings.TrimSuffix(a.Resource+"."+a.Group, ".")
	if a.Subresource != "" {
		text += "/" + a.Subresource
	}
	if a.Name != "" {
		text += " " + a.Name
	}
	if a.Namespace != "" {
		text += " in namespace " + a.Namespace
	}
	return text
}

// ExplainAccess reports whether a user may do something and, if not, which rule is missing.
func ExplainAccess(ctx context.Context, r *Reader, a Access) (*Answer, error) {
	answer := &Answer{APIVersion: Version, Object: Object{Type: "user", Name: a.User}}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: a.User, Groups: a.allGroups()}}
	if a.URL != "" {
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: a.URL, Verb: a.Verb}
	} else {
		review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Namespace: a.Namespace, Verb: a.Verb, Group: a.Group, Resource: a.Resource, Subresource: a.Subresource, Name: a.Name,
		}
	}
	review, err := r.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("you may not review the access of other users; an administrator may: %w", err)
	}
	if err != nil {
		return nil, err
	}
	const source = "SubjectAccessReview .status"
	if review.Status.Allowed {
		f := found(Healthy, AccessAllowed, fmt.Sprintf("%s may %s", a.User, a))
		answer.Finding = *f.saw(source, cmp.Or(review.Status.Reason, "allowed"))
		return answer, nil
	}
	f := r.missingRule(ctx, a)
	f.saw(source, strings.TrimSuffix("denied: "+review.Status.Reason, ": "))
	if review.Status.EvaluationError != "" {
		f.saw("SubjectAccessReview .status.evaluationError", review.Status.EvaluationError)
	}
	answer.Finding, answer.Unread = *f, r.unread
	return answer, nil
}

// grant is a binding that may concern the user.
type grant struct {
	namespace, binding string // namespace is empty for a ClusterRoleBinding
	subjects           []rbacv1.Subject
	ref                rbacv1.RoleRef
	rules              []rbacv1.PolicyRule
	missing            bool // there is no such role
}

func (g grant) String() string {
	if g.namespace == "" {
		return "clusterrolebinding/" + g.binding
	}
	return fmt.Sprintf("rolebinding/%s in namespace %s", g.binding, g.namespace)
}

// role names the grant's role.
func (g grant) role() string { return strings.ToLower(g.ref.Kind) + "/" + g.ref.Name }

// missingRule finds what comes nearest to allowing a request that is denied.
func (r *Reader) missingRule(ctx context.Context, a Access) *Finding {
	all, err := r.grants(ctx)
	if err != nil {
		return broken(AccessDenied, fmt.Sprintf("%s may not %s; the rules cannot be read", a.User, a)).
			do("Ask a user who may list the roles and bindings of the cluster.")
	}
	groups := a.allGroups()
	var bound, near []grant // of the user in the request's scope; of a subject that is nearly the user
	var elsewhere []grant
	for _, g := range all {
		switch {
		case slices.ContainsFunc(g.subjects, func(s rbacv1.Subject) bool { return isSubject(s, g.namespace, a.User, groups) }):
			if g.namespace == "" || g.namespace == a.Namespace {
				bound = append(bound, g)
			} else {
				elsewhere = append(elsewhere, g)
			}
		case (g.namespace == "" || g.namespace == a.Namespace) && nearSubject(g, a.User) != "":
			near = append(near, g)
		}
	}
	f := r.nearest(a, bound, near, elsewhere)
	for _, g := range bound {
		// Every user has these: they say nothing about this one.
		if len(f.Evidence) < 5 && !strings.HasPrefix(g.ref.Name, "system:") {
			f.saw(g.String(), g.role()+" allows "+allows(g.rules))
		}
	}
	return f
}

// nearest is the finding for the grant that comes nearest to the request.
func (r *Reader) nearest(a Access, bound, near, elsewhere []grant) *Finding {
	denied := fmt.Sprintf("%s may not %s", a.User, a)
	for _, g := range bound {
		if g.missing {
			return broken(RoleMissing, fmt.Sprintf("%s: %s gives it %s, which does not exist", denied, g, g.role())).
				saw(g.String()+" .roleRef", g.role()+" does not exist").
				do("Create the role, or bind one that exists: the roleRef of a binding cannot be changed, so delete the binding first.")
		}
	}
	for _, try := range []struct {
		code        Code
		differently func(rule rbacv1.PolicyRule) (why string) // empty: that is not it
	}{
		{RuleNamesOthers, func(rule rbacv1.PolicyRule) string {
			if !a.verb(rule) || !a.group(rule) || !a.matches(rule) || a.name(rule) {
				return ""
			}
			if a.Name == "" {
				return fmt.Sprintf("only for objects named %s, and %s is about all", strings.Join(rule.ResourceNames, ", "), a.Verb)
			}
			return "only for objects named " + strings.Join(rule.ResourceNames, ", ")
		}},
		{VerbMissing, func(rule rbacv1.PolicyRule) string {
			if a.verb(rule) || !a.group(rule) || !a.matches(rule) || !a.name(rule) {
				return ""
			}
			return fmt.Sprintf("%s, without %s", strings.Join(rule.Verbs, ", "), a.Verb)
		}},
		{GroupMissing, func(rule rbacv1.PolicyRule) string {
			if a.URL != "" || a.group(rule) || !a.matches(rule) {
				return ""
			}
			return fmt.Sprintf("%s of API group %q, which belongs to %q", a.resource(), strings.Join(rule.APIGroups, ", "), a.Group)
		}},
		{SubresourceMissing, func(rule rbacv1.PolicyRule) string {
			if a.Subresource == "" || a.matches(rule) || !a.group(rule) || !slices.Contains(rule.Resources, a.Resource) {
				return ""
			}
			return fmt.Sprintf("%s, which does not include %s", a.Resource, a.resource())
		}},
	} {
		for _, g := range bound {
			for _, rule := range g.rules {
				if why := try.differently(rule); why != "" {
					return broken(try.code, fmt.Sprintf("%s: %s of %s allows %s", denied, g.role(), g, why)).
						saw(g.role(), "has the rule "+rbacv1helpers.CompactString(rule)).
						do("Add the rule to " + g.role() + ", if all its subjects may have it, or give the user its own role:").
						do(a.remedy()...)
				}
			}
		}
	}
	for _, g := range near {
		if a.allowedBy(g.rules) {
			return broken(SubjectDiffers, fmt.Sprintf("%s: %s allows it to %s", denied, g, nearSubject(g, a.User))).
				saw(g.String()+" .subjects", nearSubject(g, a.User)).
				do("Name the user in the binding as the API server does: kind, name and, for a ServiceAccount, its namespace.")
		}
	}
	for _, g := range elsewhere {
		if a.allowedBy(g.rules) {
			where := "in all namespaces"
			if a.Namespace != "" {
				where = "in namespace " + a.Namespace
			}
			return broken(OtherNamespace, fmt.Sprintf("%s: %s allows it there only, but the request is %s", denied, g, where)).
				saw(g.String(), g.role()+" allows "+allows(g.rules)).
				do("Bind the role where it is needed:").do(a.remedy()...)
		}
	}
	return broken(AccessDenied, fmt.Sprintf("%s: no rule of its roles is about %s", denied, cmp.Or(a.URL, a.resource()))).
		do("Give the user a role that allows it:").do(a.remedy()...)
}

func (a Access) verb(rule rbacv1.PolicyRule) bool { return rbacv1helpers.VerbMatches(&rule, a.Verb) }

func (a Access) group(rule rbacv1.PolicyRule) bool {
	return a.URL != "" || rbacv1helpers.APIGroupMatches(&rule, a.Group)
}

// matches reports whether the rule is about the request's resource or path.
func (a Access) matches(rule rbacv1.PolicyRule) bool {
	if a.URL != "" {
		return rbacv1helpers.NonResourceURLMatches(&rule, a.URL)
	}
	return rbacv1helpers.ResourceMatches(&rule, a.resource(), a.Subresource)
}

func (a Access) name(rule rbacv1.PolicyRule) bool {
	return a.URL != "" || rbacv1helpers.ResourceNameMatches(&rule, a.Name)
}

// allowedBy reports whether one of rules allows the request.
// Source: k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac, RuleAllows
func (a Access) allowedBy(rules []rbacv1.PolicyRule) bool {
	return slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return a.verb(rule) && a.group(rule) && a.matches(rule) && a.name(rule)
	})
}

// remedy is the pair of commands that allows the request and no more.
func (a Access) remedy() []string {
	const role = "NAME"
	subject := "--user=" + a.User
	if namespace, account, err := serviceaccount.SplitUsername(a.User); err == nil {
		subject = "--serviceaccount=" + namespace + ":" + account
	}
	kind, binding, what := "clusterrole", "clusterrolebinding", "--non-resource-url="+a.URL
	if a.URL == "" {
		what = "--resource=" + strings.TrimSuffix(a.Resource+"."+a.Group, ".")
		if a.Subresource != "" {
			what += "/" + a.Subresource
		}
		if a.Name != "" {
			what += " --resource-name=" + a.Name
		}
	}
	if a.Namespace != "" {
		kind, binding = "role", "rolebinding"
	}
	return []string{
		kubectl(a.Namespace, "create %s %s --verb=%s %s", kind, role, a.Verb, what),
		kubectl(a.Namespace, "create %s %s --%s=%s %s", binding, role, kind, role, subject),
	}
}

// grants reads all bindings with the rules of their roles.
func (r *Reader) grants(ctx context.Context) ([]grant, error) {
	rbac := r.Client.RbacV1()
	clusterBindings, err := list(ctx, r, "clusterrolebindings", "", metav1.ListOptions{}, rbac.ClusterRoleBindings().List)
	if err != nil {
		return nil, err
	}
	bindings, err := list(ctx, r, "rolebindings", "", metav1.ListOptions{}, rbac.RoleBindings(metav1.NamespaceAll).List)
	if err != nil {
		return nil, err
	}
	clusterRoles, err := list(ctx, r, "clusterroles", "", metav1.ListOptions{}, rbac.ClusterRoles().List)
	if err != nil {
		return nil, err
	}
	roles, err := list(ctx, r, "roles", "", metav1.ListOptions{}, rbac.Roles(metav1.NamespaceAll).List)
	if err != nil {
		return nil, err
	}
	rules := map[string][]rbacv1.PolicyRule{}
	for _, role := range clusterRoles.Items {
		rules["ClusterRole//"+role.Name] = role.Rules
	}
	for _, role := range roles.Items {
		rules["Role/"+role.Namespace+"/"+role.Name] = role.Rules
	}
	var all []grant
	add := func(namespace, name string, subjects []rbacv1.Subject, ref rbacv1.RoleRef) {
		key := "ClusterRole//" + ref.Name
		if ref.Kind == "Role" {
			key = "Role/" + namespace + "/" + ref.Name
		}
		found, ok := rules[key]
		all = append(all, grant{namespace, name, subjects, ref, found, !ok})
	}
	for _, b := range clusterBindings.Items {
		add("", b.Name, b.Subjects, b.RoleRef)
	}
	for _, b := range bindings.Items {
		add(b.Namespace, b.Name, b.Subjects, b.RoleRef)
	}
	return all, nil
}

// isSubject reports whether s is the user or one of its groups.
// Source: k8s.io/kubernetes/pkg/registry/rbac/validation, appliesToUser
func isSubject(s rbacv1.Subject, namespace, name string, groups []string) bool {
	switch s.Kind {
	case rbacv1.UserKind:
		return s.Name == name
	case rbacv1.GroupKind:
		return slices.Contains(groups, s.Name)
	case rbacv1.ServiceAccountKind:
		in := cmp.Or(s.Namespace, namespace)
		return in != "" && serviceaccount.MakeUsername(in, s.Name) == name
	}
	return false
}

// nearSubject returns the subject of g that was probably meant to be the user; empty if there is none.
func nearSubject(g grant, name string) string {
	account, short := "", name
	if namespace, bare, err := serviceaccount.SplitUsername(name); err == nil {
		account, short = namespace, bare
	}
	for _, s := range g.subjects {
		switch {
		case s.Kind == rbacv1.ServiceAccountKind && s.Name == short && account == "":
			return fmt.Sprintf("the ServiceAccount %s/%s, not to the user", cmp.Or(s.Namespace, g.namespace), s.Name)
		case s.Kind == rbacv1.ServiceAccountKind && s.Name == short:
			return fmt.Sprintf("the ServiceAccount of that name in namespace %s", cmp.Or(s.Namespace, g.namespace))
		case s.Kind == rbacv1.UserKind && account != "" && s.Name == short:
			return fmt.Sprintf("a user named %s, not to the ServiceAccount", s.Name)
		case s.Kind == rbacv1.UserKind && strings.EqualFold(s.Name, name):
			return fmt.Sprintf("the user %s, and names are compared with their case", s.Name)
		case s.Kind == rbacv1.GroupKind && s.Name == name:
			return fmt.Sprintf("the group %s, not to the user", s.Name)
		}
	}
	return ""
}

// allows is a short form of rules.
func allows(rules []rbacv1.PolicyRule) string {
	var all []string
	for _, rule := range rules {
		all = append(all, strings.Join(rule.Verbs, ",")+" "+strings.Join(append(slices.Clone(rule.Resources), rule.NonResourceURLs...), ","))
	}
	if len(all) == 0 {
		return "nothing"
	}
	return oneline.Shorten(strings.Join(all, "; "), 300)
}
