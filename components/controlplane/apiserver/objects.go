package apiserver

import (
	"context"
	"fmt"
	"maps"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// wanted is an object that must exist.
type wanted struct {
	object runtime.Object
	// exact: the object is ours alone, and anything else in it is removed. Otherwise missing parts are added: rights
	// that an operator has added to upstream's roles stay.
	exact bool
}

// change is a write that creates, updates or removes one object.
type change struct {
	verb   string // create, update, replace or delete
	object string // its kind and name
	write  func(context.Context) error
}

// clients are those for all kinds.
type clients struct {
	kubernetes.Interface
	definitions apiextensionsclient.Interface
	services    aggregatorclient.Interface
}

func newClients(c *rest.Config) (clients, error) {
	cs, err := kubernetes.NewForConfig(c)
	if err != nil {
		return clients{}, err
	}
	definitions, err := apiextensionsclient.NewForConfig(c)
	if err != nil {
		return clients{}, err
	}
	services, err := aggregatorclient.NewForConfig(c)
	return clients{cs, definitions, services}, err
}

// compare reads the objects of each kind, with one request that the watch cache answers, and returns the changes to
// write. A kind that cannot be read is an error, and the others go on without it.
func compare(ctx context.Context, cs clients, all []wanted) (changes []change, failed []error) {
	kinds := kindsOf(cs)
	found, errs := make([][]change, len(kinds)), make([]error, len(kinds))
	var group errgroup.Group
	for i, k := range kinds {
		group.Go(func() error {
			found[i], errs[i] = k.compare(ctx, all)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	for i := range kinds {
		changes = append(changes, found[i]...)
		if errs[i] != nil {
			failed = append(failed, errs[i])
		}
	}
	return changes, failed
}

// kindsOf returns the kinds that an object of the bootstrap may have.
func kindsOf(cs clients) []interface {
	compare(context.Context, []wanted) ([]change, error)
} {
	rbac, admission, none := cs.RbacV1(), cs.AdmissionregistrationV1(), metav1.NamespaceAll
	return []interface {
		compare(context.Context, []wanted) ([]change, error)
	}{
		kind[rbacv1.ClusterRole, *rbacv1.ClusterRole]{
			name: "ClusterRole", next: nextClusterRole,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return rbac.ClusterRoles().List(ctx, o)
			},
			in: func(string) writer[rbacv1.ClusterRole] { return rbac.ClusterRoles() },
		},
		kind[rbacv1.ClusterRoleBinding, *rbacv1.ClusterRoleBinding]{
			name: "ClusterRoleBinding", next: nextClusterRoleBinding,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return rbac.ClusterRoleBindings().List(ctx, o)
			},
			in: func(string) writer[rbacv1.ClusterRoleBinding] { return rbac.ClusterRoleBindings() },
		},
		kind[rbacv1.Role, *rbacv1.Role]{
			name: "Role", next: nextRole,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return rbac.Roles(none).List(ctx, o)
			},
			in: func(ns string) writer[rbacv1.Role] { return rbac.Roles(ns) },
		},
		kind[rbacv1.RoleBinding, *rbacv1.RoleBinding]{
			name: "RoleBinding", next: nextRoleBinding,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return rbac.RoleBindings(none).List(ctx, o)
			},
			in: func(ns string) writer[rbacv1.RoleBinding] { return rbac.RoleBindings(ns) },
		},
		kind[schedulingv1.PriorityClass, *schedulingv1.PriorityClass]{
			name: "PriorityClass", // immutable except for its labels
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return cs.SchedulingV1().PriorityClasses().List(ctx, o)
			},
			in: func(string) writer[schedulingv1.PriorityClass] { return cs.SchedulingV1().PriorityClasses() },
		},
		kind[flowcontrolv1.FlowSchema, *flowcontrolv1.FlowSchema]{
			name: "FlowSchema", next: nextFlowSchema,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return cs.FlowcontrolV1().FlowSchemas().List(ctx, o)
			},
			in: func(string) writer[flowcontrolv1.FlowSchema] { return cs.FlowcontrolV1().FlowSchemas() },
		},
		kind[admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicy]{
			name: "ValidatingAdmissionPolicy",
			next: nextSpec(legacyscheme.Scheme, func(next, want *admissionregistrationv1.ValidatingAdmissionPolicy) { next.Spec = want.Spec }),
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return admission.ValidatingAdmissionPolicies().List(ctx, o)
			},
			in: func(string) writer[admissionregistrationv1.ValidatingAdmissionPolicy] {
				return admission.ValidatingAdmissionPolicies()
			},
		},
		kind[admissionregistrationv1.ValidatingAdmissionPolicyBinding, *admissionregistrationv1.ValidatingAdmissionPolicyBinding]{
			name: "ValidatingAdmissionPolicyBinding",
			next: nextSpec(legacyscheme.Scheme, func(next, want *admissionregistrationv1.ValidatingAdmissionPolicyBinding) { next.Spec = want.Spec }),
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return admission.ValidatingAdmissionPolicyBindings().List(ctx, o)
			},
			in: func(string) writer[admissionregistrationv1.ValidatingAdmissionPolicyBinding] {
				return admission.ValidatingAdmissionPolicyBindings()
			},
		},
		kind[apiextensionsv1.CustomResourceDefinition, *apiextensionsv1.CustomResourceDefinition]{
			name: "CustomResourceDefinition",
			next: nextSpec(apiextensionsapiserver.Scheme, func(next, want *apiextensionsv1.CustomResourceDefinition) { next.Spec = want.Spec }),
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return cs.definitions.ApiextensionsV1().CustomResourceDefinitions().List(ctx, o)
			},
			in: func(string) writer[apiextensionsv1.CustomResourceDefinition] {
				return cs.definitions.ApiextensionsV1().CustomResourceDefinitions()
			},
		},
		kind[apiregistrationv1.APIService, *apiregistrationv1.APIService]{
			name: "APIService", next: nextAPIService,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return cs.services.ApiregistrationV1().APIServices().List(ctx, o)
			},
			in: func(string) writer[apiregistrationv1.APIService] {
				return cs.services.ApiregistrationV1().APIServices()
			},
		},
	}
}

// writer is a typed client of client-go.
type writer[T any] interface {
	Create(context.Context, *T, metav1.CreateOptions) (*T, error)
	Update(context.Context, *T, metav1.UpdateOptions) (*T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

// kind reads and writes objects of one kind.
type kind[T any, P interface {
	*T
	metav1.Object
	runtime.Object
}] struct {
	name string
	list func(context.Context, metav1.ListOptions) (runtime.Object, error)
	in   func(namespace string) writer[T]
	// next returns the object to write in place of one that exists; nil when that is right. Without a UID it is a new
	// object of the same name, which replaces the first. A nil function leaves existing objects alone.
	next func(have, want P, exact bool) (P, error)
}

// compare returns what must be written, or removed, of this kind.
func (k kind[T, P]) compare(ctx context.Context, all []wanted) ([]change, error) {
	list, err := k.list(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list the objects of kind %s: %w", k.name, err)
	}
	have := map[string]P{}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		object := o.(P)
		have[key(object)] = object
		return nil
	})
	if err != nil {
		return nil, err
	}
	var changes []change
	for _, w := range all {
		want, ok := w.object.(P)
		if !ok {
			continue
		}
		c, err := k.change(have[key(want)], want, w.exact)
		if err != nil {
			return nil, fmt.Errorf("compare %s %s: %w", k.name, key(want), err)
		}
		if c != nil {
			c.object = k.name + " " + key(want)
			changes = append(changes, *c)
		}
		delete(have, key(want))
	}
	for name, object := range have {
		if dropped(k.name, object) {
			changes = append(changes, change{verb: "delete", object: k.name + " " + name, write: func(ctx context.Context) error {
				return k.remove(ctx, object)
			}})
		}
	}
	return changes, nil
}

// remove deletes this very object, by its UID.
func (k kind[T, P]) remove(ctx context.Context, object P) error {
	err := k.in(object.GetNamespace()).Delete(ctx, object.GetName(), *metav1.NewPreconditionDeleteOptions(string(object.GetUID())))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// change returns the write that turns have, which may be nil, into want; nil when it is right.
func (k kind[T, P]) change(have, want P, exact bool) (*change, error) {
	client := k.in(want.GetNamespace())
	if have == nil {
		return &change{verb: "create", write: func(ctx context.Context) error {
			_, err := client.Create(ctx, want, metav1.CreateOptions{})
			return err
		}}, nil
	}
	if k.next == nil {
		return nil, nil
	}
	next, err := k.next(have, want, exact)
	switch {
	case err != nil || next == nil:
		return nil, err
	case next.GetUID() == have.GetUID():
		return &change{verb: "update", write: func(ctx context.Context) error {
			_, err := client.Update(ctx, next, metav1.UpdateOptions{})
			return err
		}}, nil
	}
	return &change{verb: "replace", write: func(ctx context.Context) error {
		if err := k.remove(ctx, have); err != nil {
			return err
		}
		_, err := client.Create(ctx, next, metav1.CreateOptions{})
		return err
	}}, nil
}

func key(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// Upstream's reconciliation compares the rights. It honours rbac.authorization.kubernetes.io/autoupdate: "false".

func nextClusterRole(have, want *rbacv1.ClusterRole, exact bool) (*rbacv1.ClusterRole, error) {
	owner, err := nextRules(reconciliation.ClusterRoleRuleOwner{ClusterRole: have}, reconciliation.ClusterRoleRuleOwner{ClusterRole: want}, exact)
	if owner == nil || err != nil {
		return nil, err
	}
	return owner.(reconciliation.ClusterRoleRuleOwner).ClusterRole, nil
}

func nextRole(have, want *rbacv1.Role, exact bool) (*rbacv1.Role, error) {
	owner, err := nextRules(reconciliation.RoleRuleOwner{Role: have}, reconciliation.RoleRuleOwner{Role: want}, exact)
	if owner == nil || err != nil {
		return nil, err
	}
	return owner.(reconciliation.RoleRuleOwner).Role, nil
}

// nextRules returns nil when nothing has to be written.
func nextRules(have, want reconciliation.RuleOwner, exact bool) (reconciliation.RuleOwner, error) {
	options := reconciliation.ReconcileRoleOptions{Role: want, RemoveExtraPermissions: exact, Client: knownRules{have: have}}
	result, err := options.Run()
	if err != nil || result.Protected || result.Operation == reconciliation.ReconcileNone {
		return nil, err
	}
	return result.Role, nil
}

// knownRules returns what was listed. Without Confirm nothing is written.
type knownRules struct {
	reconciliation.RuleOwnerModifier
	have reconciliation.RuleOwner
}

// Get implements reconciliation.RuleOwnerModifier.
func (k knownRules) Get(string, string) (reconciliation.RuleOwner, error) { return k.have, nil }

func nextClusterRoleBinding(have, want *rbacv1.ClusterRoleBinding, exact bool) (*rbacv1.ClusterRoleBinding, error) {
	b, err := nextSubjects(
		reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: have},
		reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: want}, exact)
	if b == nil || err != nil {
		return nil, err
	}
	return b.(reconciliation.ClusterRoleBindingAdapter).ClusterRoleBinding, nil
}

func nextRoleBinding(have, want *rbacv1.RoleBinding, exact bool) (*rbacv1.RoleBinding, error) {
	b, err := nextSubjects(reconciliation.RoleBindingAdapter{RoleBinding: have}, reconciliation.RoleBindingAdapter{RoleBinding: want}, exact)
	if b == nil || err != nil {
		return nil, err
	}
	return b.(reconciliation.RoleBindingAdapter).RoleBinding, nil
}

// nextSubjects returns nil when nothing has to be written.
func nextSubjects(have, want reconciliation.RoleBinding, exact bool) (reconciliation.RoleBinding, error) {
	options := reconciliation.ReconcileRoleBindingOptions{RoleBinding: want, RemoveExtraSubjects: exact, Client: knownSubjects{have: have}}
	result, err := options.Run()
	if err != nil || result.Protected || result.Operation == reconciliation.ReconcileNone {
		return nil, err
	}
	return result.RoleBinding, nil
}

// knownSubjects returns what was listed. Without Confirm nothing is written.
type knownSubjects struct {
	reconciliation.RoleBindingModifier
	have reconciliation.RoleBinding
}

// Get implements reconciliation.RoleBindingModifier.
func (k knownSubjects) Get(string, string) (reconciliation.RoleBinding, error) { return k.have, nil }

func nextFlowSchema(have, want *flowcontrolv1.FlowSchema, _ bool) (*flowcontrolv1.FlowSchema, error) {
	if have.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] == "false" { // as upstream does
		return nil, nil
	}
	next, want := have.DeepCopy(), want.DeepCopy()
	legacyscheme.Scheme.Default(want)
	next.Spec = want.Spec
	return changed(have, next, want), nil
}

// nextSpec returns a function for kind.next: it sets the wanted spec, with a scheme's defaults.
func nextSpec[P interface {
	metav1.Object
	runtime.Object
	DeepCopy() P
}](scheme *runtime.Scheme, set func(next, want P)) func(have, want P, exact bool) (P, error) {
	return func(have, want P, _ bool) (P, error) {
		next, want := have.DeepCopy(), want.DeepCopy()
		scheme.Default(want)
		set(next, want)
		return changed(have, next, want), nil
	}
}

// nextAPIService takes an APIService over from upstream, which marks those that it manages with a label.
func nextAPIService(have, want *apiregistrationv1.APIService, _ bool) (*apiregistrationv1.APIService, error) {
	next := have.DeepCopy()
	next.Spec = want.Spec
	delete(next.Labels, autoregister.AutoRegisterManagedLabel)
	return changed(have, next, want), nil
}

// changed sets the wanted labels on next, and returns it if it differs from have.
func changed[P metav1.Object](have, next, want P) P {
	if len(want.GetLabels()) > 0 {
		labels := map[string]string{}
		maps.Copy(labels, next.GetLabels())
		maps.Copy(labels, want.GetLabels())
		next.SetLabels(labels)
	}
	if equality.Semantic.DeepEqual(have, next) {
		var none P
		return none
	}
	return next
}
