package why

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var noGet = metav1.GetOptions{}

// fresh is how long a controller may take to do its part before that is a fault.
const fresh = 10 * time.Second

// absent explains an object that does not exist: from the record, by one of the same name in another namespace, or
// names like it.
func (r *Reader) absent(ctx context.Context, t Target) *Finding {
	if f := r.recorded(ctx, t); f != nil {
		return f
	}
	where := ""
	if t.Namespace != "" {
		where = " in namespace " + t.Namespace
	}
	f := found(Absent, NotFound, fmt.Sprintf("%s does not exist%s", t.Object(), where))
	f.saw("GET "+t.Resource.Resource, fmt.Sprintf("the API server knows no %q%s", t.Name, where))
	if t.Namespace != "" {
		all, err := r.Dynamic.Resource(t.Resource).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + t.Name})
		if err == nil {
			for _, o := range all.Items {
				if o.GetName() == t.Name && o.GetNamespace() != t.Namespace {
					f.saw("namespace "+o.GetNamespace(), "has an object of this type and name")
					f.do(fmt.Sprintf("kubelith why %s -n %s", t.Object(), o.GetNamespace()))
				}
			}
		}
	}
	if all, err := r.Dynamic.Resource(t.Resource).Namespace(t.Namespace).List(ctx, metav1.ListOptions{}); err == nil {
		var like []string
		for _, o := range all.Items {
			if strings.HasPrefix(o.GetName(), t.Name) || strings.HasPrefix(t.Name, o.GetName()) {
				like = append(like, o.GetName())
			}
		}
		slices.Sort(like)
		if len(like) > 0 {
			f.saw("LIST "+t.Resource.Resource, "similar names: "+strings.Join(like[:min(len(like), 5)], ", "))
		}
	}
	if len(f.Remedy) == 0 {
		f.do(kubectl(t.Namespace, "get %s", t.Resource.Resource))
	}
	return f
}

// deletion explains an object that is deleted and still there.
func deletion(r *Reader, o Object, object metav1.Object) *Finding {
	at, finalizers := *object.GetDeletionTimestamp(), object.GetFinalizers()
	if grace := object.GetDeletionGracePeriodSeconds(); grace != nil {
		at = metav1.NewTime(at.Add(-time.Duration(*grace) * time.Second)) // the timestamp is when it must have ended
	}
	if len(finalizers) == 0 || r.age(at) < fresh {
		f := found(Progressing, Deleting, fmt.Sprintf("%s is being deleted", o)).since(at)
		f.sawAt(o.String()+" .metadata.deletionTimestamp", "deletion was requested", at)
		if len(finalizers) > 0 {
			f.saw(o.String()+" .metadata.finalizers", strings.Join(finalizers, ", "))
		}
		return f
	}
	f := broken(FinalizerHolds, fmt.Sprintf("%s was deleted %s ago, but its finalizer %s keeps it: its owner has not removed the finalizer",
		o, ago(r.age(at)), strings.Join(finalizers, ", "))).since(at)
	f.sawAt(o.String()+" .metadata.deletionTimestamp", "deletion was requested", at)
	f.saw(o.String()+" .metadata.finalizers", strings.Join(finalizers, ", "))
	return f.do("Find the controller that set the finalizer and read its log: it must clean up and then remove the finalizer.",
		"Only if that controller is gone for good; what it would have cleaned up is left behind:",
		kubectl(o.Namespace, `patch %s --type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]'`, o))
}

// condition is a condition as most kinds have it.
type condition struct {
	kind, status, reason, message string
	since                         metav1.Time
}

func conditions(object *unstructured.Unstructured) []condition {
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	var all []condition
	for _, item := range list {
		m, ok := item.(map[string]any)
		if !ok {
			continue
		}
		text := func(key string) string { s, _ := m[key].(string); return s }
		c := condition{kind: text("type"), status: text("status"), reason: text("reason"), message: text("message")}
		if at, err := time.Parse(time.RFC3339, text("lastTransitionTime")); err == nil {
			c.since = metav1.NewTime(at)
		}
		all = append(all, c)
	}
	return all
}

// wanted are the conditions that are True when all is well, the one that says most first. Others are not judged: for
// a kind that is not known, True may be the good or the bad one.
// Source: https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
var wanted = [...]string{"Ready", "Available", "Established", "Accepted", "Programmed", "Synced", "Succeeded", "Complete", "Healthy"}

// generic explains an object by its conditions, its owner and its Events.
func generic(ctx context.Context, r *Reader, o Object, object *unstructured.Unstructured) *Finding {
	all := conditions(object)
	f := r.byConditions(ctx, o, object, all)
	if owner := metav1.GetControllerOf(object); owner != nil {
		f.saw(o.String()+" .metadata.ownerReferences", "created by "+strings.ToLower(owner.Kind)+"/"+owner.Name)
	}
	return f
}

func (r *Reader) byConditions(ctx context.Context, o Object, object *unstructured.Unstructured, all []condition) *Finding {
	if observed, has, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration"); has {
		if f := behind(o, observed, object); f != nil {
			return f
		}
	}
	var good *condition
	for _, name := range wanted {
		i := slices.IndexFunc(all, func(c condition) bool { return c.kind == name })
		if i < 0 {
			continue
		}
		c := all[i]
		if c.status == string(metav1.ConditionTrue) {
			if good == nil {
				good = &all[i]
			}
			continue
		}
		f := broken(ConditionNotTrue, fmt.Sprintf("%s is not %s: %s", o, c.kind, firstOf(c.message, c.reason, "its controller gives no reason")))
		if r.age(c.since) < fresh && c.status == string(metav1.ConditionUnknown) {
			f.Status, f.Code = Progressing, InProgress
		}
		f.since(c.since).sawAt(fmt.Sprintf("%s .status.conditions[%s]", o, c.kind), fmt.Sprintf("%s, %s: %s", c.status, c.reason, c.message), c.since)
		for _, e := range r.warnings(ctx, object, c.since) {
			f.sawAt(e.Source(), e.Message, e.Last)
		}
		return f.do(fmt.Sprintf("The controller of this type sets the condition; its reason is %s.", firstOf(c.reason, "not given")))
	}
	if good == nil {
		if warned := r.warnings(ctx, object, metav1.NewTime(r.now().Add(-time.Hour))); len(warned) > 0 {
			f := found(Healthy, EventWarns, fmt.Sprintf("the state of %s shows no error; its last warning was: %s", o, warned[0].Message))
			for _, e := range warned {
				f.sawAt(e.Source(), fmt.Sprintf("%s (%d times)", e.Message, max(e.Count, 1)), e.Last)
			}
			return f.do("Nothing, unless the warning comes again: objects of this type have no condition that would confirm it.")
		}
		return found(Healthy, OK, fmt.Sprintf("%s exists, and nothing reports a problem with it", o)).
			since(object.GetCreationTimestamp()).
			sawAt(o.String()+" .metadata.creationTimestamp", "created", object.GetCreationTimestamp())
	}
	return found(Healthy, OK, fmt.Sprintf("%s has been %s since %s", o, good.kind, clock(good.since))).since(good.since).
		sawAt(fmt.Sprintf("%s .status.conditions[%s]", o, good.kind), strings.TrimSuffix("True, "+good.reason, ", "), good.since)
}

// warnings are the last Events of type Warning about an object since a time, up to three.
func (r *Reader) warnings(ctx context.Context, object metav1.Object, since metav1.Time) []Event {
	var warned []Event
	for _, e := range r.Events(ctx, object) {
		if e.Type == "Warning" && !e.Last.Time.Before(since.Truncate(time.Second)) && len(warned) < 3 {
			warned = append(warned, e)
		}
	}
	return warned
}

// firstOf is the first text that is not empty.
func firstOf(texts ...string) string {
	for _, t := range texts {
		if t = sentence(t); t != "" {
			return t
		}
	}
	return ""
}

// clock is a time as text: UTC, to the second.
func clock(t metav1.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
