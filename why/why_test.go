package why

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// now is the time of the tests.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// before is a time before now.
func before(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// reader returns a reader of objects, which both clients know.
func reader(t testing.TB, objects ...runtime.Object) (*Reader, *fake.Clientset) {
	t.Helper()
	lists := map[schema.GroupVersionResource]string{gadgets: "GadgetList", clusterPolicies: "ClusterNetworkPolicyList"}
	var typed []runtime.Object
	for _, o := range objects {
		if _, ok := o.(*unstructured.Unstructured); !ok {
			typed = append(typed, o)
		}
	}
	client := fake.NewClientset(typed...)
	return NewReader(Options{
		Client:  client,
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, lists, objects...),
		Now:     func() time.Time { return now },
	}), client
}

// target names an object of a built-in type, or a gadget.
func target(kind schema.GroupVersionKind, resource, namespace, name string) Target {
	return Target{Kind: kind, Resource: kind.GroupVersion().WithResource(resource), Namespace: namespace, Name: name}
}

func podTarget(name string) Target {
	return target(corev1.SchemeGroupVersion.WithKind("Pod"), "pods", "ns", name)
}

var gadgets = schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "gadgets"}

func gadgetTarget(name string) Target {
	return target(gadgets.GroupVersion().WithKind("Gadget"), "gadgets", "ns", name)
}

// gadget is an object of a kind that no code here knows.
func gadget(name string, change func(map[string]any)) *unstructured.Unstructured {
	o := map[string]any{
		"apiVersion": "example.org/v1", "kind": "Gadget",
		"metadata": map[string]any{"namespace": "ns", "name": name, "uid": "uid-" + name, "creationTimestamp": before(time.Hour).Format(time.RFC3339)},
	}
	if change != nil {
		change(o)
	}
	return &unstructured.Unstructured{Object: o}
}

func withCondition(kind, status, reason, message string, since time.Duration) func(map[string]any) {
	return func(o map[string]any) {
		o["status"] = map[string]any{"conditions": []any{map[string]any{
			"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": before(since).Format(time.RFC3339),
		}}}
	}
}

func ask(t *testing.T, r *Reader, target Target) *Answer {
	t.Helper()
	a, err := Explain(t.Context(), r, target)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// proves reports whether a text stands in the evidence.
func (f *Finding) proves(text string) bool {
	return slices.ContainsFunc(f.Evidence, func(e Evidence) bool { return strings.Contains(e.Source+": "+e.Text, text) })
}

// event is an Event about an object with a UID.
func event(object, uid, kind, reason, text string, ago time.Duration) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: object + "." + reason}, Type: kind, Reason: reason, Message: text,
		InvolvedObject: corev1.ObjectReference{Kind: "Gadget", Namespace: "ns", Name: object, UID: types.UID(uid)},
		LastTimestamp:  before(ago), FirstTimestamp: before(ago),
	}
}

func TestGeneric(t *testing.T) {
	deleted := func(ago time.Duration, finalizers ...any) func(map[string]any) {
		return func(o map[string]any) {
			m := o["metadata"].(map[string]any)
			m["deletionTimestamp"], m["finalizers"] = before(ago).Format(time.RFC3339), finalizers
		}
	}
	for name, c := range map[string]struct {
		object *unstructured.Unstructured
		events []runtime.Object
		status Status
		code   Code
		proof  string
	}{
		"ready":                 {gadget("a", withCondition("Ready", "True", "Built", "", time.Hour)), nil, Healthy, OK, "[Ready]: True, Built"},
		"not ready":             {gadget("a", withCondition("Ready", "False", "NoParts", "no wheel", time.Hour)), nil, Broken, ConditionNotTrue, "False, NoParts: no wheel"},
		"not known yet":         {gadget("a", withCondition("Ready", "Unknown", "Building", "", time.Second)), nil, Progressing, InProgress, "Building"},
		"an unknown condition":  {gadget("a", withCondition("Degraded", "False", "", "", time.Hour)), nil, Healthy, OK, "created"},
		"no conditions":         {gadget("a", nil), nil, Healthy, OK, "created"},
		"a warning":             {gadget("a", nil), []runtime.Object{event("a", "uid-a", "Warning", "Bent", "it is bent", time.Minute)}, Healthy, EventWarns, "it is bent"},
		"an old warning":        {gadget("a", nil), []runtime.Object{event("a", "uid-a", "Warning", "Bent", "it is bent", 3*time.Hour)}, Healthy, OK, "created"},
		"a namesake's warning":  {gadget("a", nil), []runtime.Object{event("a", "other", "Warning", "Bent", "it is bent", time.Minute)}, Healthy, OK, "created"},
		"ready after a warning": {gadget("a", withCondition("Ready", "True", "", "", time.Minute)), []runtime.Object{event("a", "uid-a", "Warning", "Bent", "it is bent", time.Second)}, Healthy, OK, "True"},
		"held by a finalizer":   {gadget("a", deleted(time.Minute, "example.org/brake")), nil, Broken, FinalizerHolds, "example.org/brake"},
		"just deleted":          {gadget("a", deleted(time.Second, "example.org/brake")), nil, Progressing, Deleting, "example.org/brake"},
		"deleted without one":   {gadget("a", deleted(time.Minute)), nil, Progressing, Deleting, "deletion was requested"},
		"changed, and not seen": {gadget("a", func(o map[string]any) {
			o["metadata"].(map[string]any)["generation"] = int64(2)
			o["status"] = map[string]any{"observedGeneration": int64(1)}
		}), nil, Progressing, ObservationBehind, "1; .metadata.generation is 2"},
		"of another's condition": {gadget("a", withCondition("Ready", "False", "", "", time.Hour)), []runtime.Object{event("a", "uid-a", "Warning", "Bent", "it is bent", time.Minute)}, Broken, ConditionNotTrue, "it is bent"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reader(t, append([]runtime.Object{c.object}, c.events...)...)
			a := ask(t, r, gadgetTarget("a"))
			if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
				t.Errorf("want %s %s with %q, got %+v", c.status, c.code, c.proof, a)
			}
		})
	}
}

func TestAbsent(t *testing.T) {
	other := gadget("a", nil)
	other.SetNamespace("elsewhere")
	r, _ := reader(t, other, gadget("ab", nil))
	a := ask(t, r, gadgetTarget("a"))
	if a.Status != Absent || a.Code != NotFound || !a.proves("namespace elsewhere") || !a.proves("similar names: ab") {
		t.Errorf("got %+v", a)
	}
	if want := "kubelith why gadget.example.org/a -n elsewhere"; !slices.Contains(a.Remedy, want) {
		t.Errorf("remedy %q lacks %q", a.Remedy, want)
	}
}

// What may not be read is reported once, and the answer does without it.
func TestForbidden(t *testing.T) {
	r, client := reader(t, gadget("a", withCondition("Ready", "False", "NoParts", "no wheel", time.Hour)))
	refusals := 0
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals++
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no"))
	})
	a := ask(t, r, gadgetTarget("a"))
	if a.Code != ConditionNotTrue || len(a.Unread) != 1 || !strings.Contains(a.Unread[0], "you may not list events in namespace ns") {
		t.Errorf("got %+v", a)
	}
	r.Events(context.Background(), gadget("a", nil))
	if refusals != 1 {
		t.Errorf("asked %d times", refusals)
	}
}

func TestJSON(t *testing.T) {
	r, _ := reader(t, gadget("a", withCondition("Ready", "True", "Built", "", time.Hour)))
	text, err := json.Marshal(ask(t, r, gadgetTarget("a")))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"apiVersion": Version, "status": "healthy", "code": "OK", "since": "2026-03-01T11:00:00Z"} {
		if got[key] != want {
			t.Errorf("%s is %v, want %s", key, got[key], want)
		}
	}
	if got["object"].(map[string]any)["uid"] != "uid-a" || got["evidence"].([]any)[0].(map[string]any)["time"] != "2026-03-01T11:00:00Z" {
		t.Errorf("got %s", text)
	}
}

func TestText(t *testing.T) {
	f := broken(ConditionNotTrue, "the wheel\nis missing.").since(before(90*time.Second)).
		sawAt("gadget/a .status", "one\ntwo\x1b[2J", before(time.Second)).saw("gadget/a .spec", "").
		do("Do this.", "kubelith kubectl get gadgets --with-a-long-flag-that-does-not-fit-into-the-width").
		not(NotFound, "it does not exist", "it does").not(NotFound, "twice", "").not(ConditionNotTrue, "itself", "")
	f.under(Object{Type: "gadget", Name: "a"}, Object{Type: "wheel", Name: "w"})
	a := &Answer{Object: Object{Type: "gadget", Name: "a"}, Finding: *f, Unread: []string{"you may not list nodes"}}
	var out bytes.Buffer
	if err := a.WriteText(&out, Style{Width: 50, Now: now}); err != nil {
		t.Fatal(err)
	}
	want := `the wheel is missing
  gadget/a: broken, ConditionNotTrue, since
  2026-03-01 11:58:30 UTC (1m30s)
  gadget/a -> wheel/w

Evidence
  - gadget/a .status (1s ago):
      one
      two?[2J

What to do
  Do this.
    kubelith kubectl get gadgets --with-a-long-flag-that-does-not-fit-into-the-width

Not because
  - it does not exist: it does

Not read
  - you may not list nodes
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", 3 * time.Hour: "3h",
		200 * time.Minute: "3h20m", 100 * time.Hour: "4d"} {
		if got := ago(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
