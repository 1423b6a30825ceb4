package why

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubelith.io/kubelith/base/oneline"
)

func namespaceCondition(ns *corev1.Namespace, kind corev1.NamespaceConditionType) *corev1.NamespaceCondition {
	return first(ns.Status.Conditions, func(c *corev1.NamespaceCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

// explainNamespace explains a namespace: active, or why it is not gone.
func explainNamespace(ctx context.Context, r *Reader, ns *corev1.Namespace) (*Finding, error) {
	o := objectAs("namespace", ns)
	if ns.DeletionTimestamp == nil {
		return found(Healthy, OK, fmt.Sprintf("%s has been active since %s", o, clock(ns.CreationTimestamp))).since(ns.CreationTimestamp).
			saw(o.String()+" .status.phase", string(ns.Status.Phase)), nil
	}
	at := *ns.DeletionTimestamp
	f := r.terminating(ctx, ns)
	f.since(at).sawAt(o.String()+" .metadata.deletionTimestamp", "deletion was requested", at)
	for _, c := range ns.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			f.sawAt(fmt.Sprintf("%s .status.conditions[%s]", o, c.Type), firstOf(c.Message, c.Reason), c.LastTransitionTime)
		}
	}
	return f, nil
}

// terminating explains a namespace that is deleted and still there.
//
// Source: k8s.io/kubernetes/pkg/controller/namespace/deletion/status_condition_utils.go: the conditions, and the texts
// in which alone the resources and finalizers stand
func (r *Reader) terminating(ctx context.Context, ns *corev1.Namespace) *Finding {
	o, age := objectAs("namespace", ns), ago(r.age(*ns.DeletionTimestamp))
	if c := namespaceCondition(ns, corev1.NamespaceDeletionDiscoveryFailure); c != nil {
		return broken(APIUnavailable, fmt.Sprintf("%s was deleted %s ago, but its contents cannot be listed: an API group does not answer: %s",
			o, age, oneline.Shorten(groupOf(c.Message), 200))).
			not(NamespaceRemains, "objects in it hold it", "the controller searches for them once all API groups answer").
			do("Start what serves the API group, or delete its APIService if it is gone for good:", kubectl("", "get apiservices"))
	}
	if c := namespaceCondition(ns, corev1.NamespaceFinalizersRemaining); c != nil && r.age(*ns.DeletionTimestamp) >= fresh {
		finalizers := after(c.Message, "finalizers remaining: ")
		f := broken(NamespaceRemains, fmt.Sprintf("%s was deleted %s ago, but objects in it still have finalizers: %s", o, age, finalizers))
		r.sawRemaining(ctx, f, ns)
		return f.not(APIUnavailable, "an API group does not answer", "all resources were discovered").
			do("Find the controller that owns the finalizer, and read its log: it must clean up before the object goes. " +
				"Ask about the object: kubelith why TYPE/NAME -n " + ns.Name + ".")
	}
	if c := namespaceCondition(ns, corev1.NamespaceDeletionContentFailure); c != nil {
		return broken(NamespaceRemains, fmt.Sprintf("%s was deleted %s ago, but the deletion of its contents fails: %s",
			o, age, oneline.Shorten(after(c.Message, "remaining: "), 300))).
			do("The message is the API server's: correct what it names, such as a webhook that refuses deletions.")
	}
	others := len(ns.Spec.Finalizers) > 0 && !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
	object := len(ns.Spec.Finalizers) == 0 && len(ns.Finalizers) > 0 && r.age(*ns.DeletionTimestamp) >= fresh
	if others || object {
		return deletion(r, o, ns)
	}
	return found(Progressing, Deleting, fmt.Sprintf("%s is being deleted, with everything in it", o))
}

// unavailable finds the group in the text of a failed discovery.
//
// Source: k8s.io/client-go/discovery (ErrGroupDiscoveryFailed)
var unavailable = regexp.MustCompile(`unable to retrieve the complete list of server APIs: (.*)`)

func groupOf(message string) string {
	if m := unavailable.FindStringSubmatch(message); m != nil {
		return m[1]
	}
	return message
}

// remaining finds a resource in the text of NamespaceContentRemaining: "configmaps. has 1 resource instances".
var remaining = regexp.MustCompile(`([a-z0-9-]+)\.([a-z0-9.-]*) has \d+ resource instances`)

// sawRemaining adds the objects in a namespace that have finalizers, as far as the caller may list them.
func (r *Reader) sawRemaining(ctx context.Context, f *Finding, ns *corev1.Namespace) {
	c := namespaceCondition(ns, corev1.NamespaceContentRemaining)
	if c == nil {
		return
	}
	for _, m := range remaining.FindAllStringSubmatch(c.Message, 5) {
		for _, version := range r.versions(m[2]) {
			gvr := schema.GroupVersionResource{Group: m[2], Version: version, Resource: m[1]}
			l, err := r.Dynamic.Resource(gvr).Namespace(ns.Name).List(ctx, metav1.ListOptions{Limit: 20})
			if err != nil {
				continue
			}
			for _, item := range l.Items {
				if finalizers := item.GetFinalizers(); len(finalizers) > 0 && len(f.Evidence) < 6 {
					f.saw(strings.ToLower(item.GetKind())+"/"+item.GetName()+" .metadata.finalizers", strings.Join(finalizers, ", "))
				}
			}
			break
		}
	}
}

// versions are those of an API group, the preferred one first.
func (r *Reader) versions(group string) []string {
	if group == "" {
		return []string{"v1"}
	}
	groups, err := r.Client.Discovery().ServerGroups()
	if err != nil {
		return nil
	}
	for _, g := range groups.Groups {
		if g.Name == group {
			all := []string{g.PreferredVersion.Version}
			for _, v := range g.Versions {
				all = append(all, v.Version)
			}
			return all
		}
	}
	return nil
}
