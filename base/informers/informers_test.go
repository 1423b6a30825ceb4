package informers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}
}

// seen returns a handler that reports the names of added objects.
func seen() (cache.ResourceEventHandler, <-chan string) {
	c := make(chan string, 10)
	return cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { c <- obj.(metav1.Object).GetName() }}, c
}

func expect(t *testing.T, c <-chan string, want string) {
	t.Helper()
	select {
	case got := <-c:
		if got != want {
			t.Fatalf("handler saw %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("handler did not see %q", want)
	}
}

func TestViewHoldsEventsBackUntilStarted(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	shared := informers.NewSharedInformerFactoryWithOptions(fake.NewClientset(pod("a")), 0, informers.WithTransform(Trim))
	direct, directSeen := seen()
	if _, err := shared.Core().V1().Pods().Informer().AddEventHandler(direct); err != nil {
		t.Fatal(err)
	}
	shared.Start(stop)
	expect(t, directSeen, "a") // the informer runs and has delivered

	view := NewView(shared)
	for name, add := range map[string]func(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error){
		"AddEventHandler": view.Core().V1().Pods().Informer().AddEventHandler,
		"AddEventHandlerWithResyncPeriod": func(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
			return view.Core().V1().Pods().Informer().AddEventHandlerWithResyncPeriod(h, 0)
		},
		"AddEventHandlerWithOptions": func(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
			return view.Core().V1().Pods().Informer().AddEventHandlerWithOptions(h, cache.HandlerOptions{})
		},
		"ForResource": func(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
			i, err := view.ForResource(corev1.SchemeGroupVersion.WithResource("pods"))
			if err != nil {
				return nil, err
			}
			return i.Informer().AddEventHandler(h)
		},
	} {
		gated, gatedSeen := seen()
		registration, err := add(gated)
		if err != nil {
			t.Fatal(err)
		}
		if registration.HasSynced() {
			t.Errorf("%s: synced before the handler saw anything", name)
		}
		defer expect(t, gatedSeen, "a") // after Start, below
		select {
		case got := <-gatedSeen:
			t.Errorf("%s: saw %q before Start", name, got)
		case <-time.After(20 * time.Millisecond):
		}
	}
	view.Start(stop)
}

// TestViewShowsOnly: a view that shows some objects of a type is, to its user, an informer that watches with a
// selector.
func TestViewShowsOnly(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	finished := pod("finished")
	finished.Status.Phase = corev1.PodSucceeded
	cs := fake.NewClientset(pod("running"), finished, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	shared := informers.NewSharedInformerFactory(cs, 0)
	view := NewView(shared)
	Only(view, func(p *corev1.Pod) bool { return p.Status.Phase != corev1.PodSucceeded })

	events := make(chan string, 10)
	note := func(what string) func(any) {
		return func(obj any) {
			if p, ok := As[*corev1.Pod](obj); ok {
				events <- what + " " + p.Name
			}
		}
	}
	some := view.Core().V1().Pods().Informer()
	if _, err := some.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note("add"), DeleteFunc: note("delete"),
		UpdateFunc: func(_, obj any) { note("update")(obj) }}); err != nil {
		t.Fatal(err)
	}
	pods, nodes, all := view.Core().V1().Pods().Lister(), view.Core().V1().Nodes().Lister(), shared.Core().V1().Pods().Lister()
	view.Start(stop)
	for kind, synced := range view.WaitForCacheSync(stop) {
		if !synced {
			t.Fatalf("%v not synced", kind)
		}
	}
	expect(t, events, "add running")
	shown := func(want ...string) {
		t.Helper()
		for name, list := range map[string]func(labels.Selector) ([]*corev1.Pod, error){"all": pods.List, "of the namespace": pods.Pods("ns").List} {
			got, err := list(labels.Everything())
			if err != nil || len(got) != len(want) || len(got) == 1 && got[0].Name != want[0] {
				t.Errorf("%s: %v, %v; want %q", name, got, err, want)
			}
		}
		if got := some.GetStore().List(); len(got) != len(want) {
			t.Errorf("store: %v; want %q", got, want)
		}
		if got, err := some.GetIndexer().ByIndex(cache.NamespaceIndex, "ns"); err != nil || len(got) != len(want) {
			t.Errorf("index: %v, %v; want %q", got, err, want)
		}
	}
	shown("running")
	if _, err := pods.Pods("ns").Get("finished"); !apierrors.IsNotFound(err) {
		t.Errorf("GET of a pod that the view does not show: %v", err)
	}
	if _, exists, err := some.GetStore().Get(finished); exists || err != nil {
		t.Errorf("the store has a pod that the view does not show: %v", err)
	}
	if got, err := all.List(labels.Everything()); err != nil || len(got) != 2 {
		t.Errorf("shared informer: %v, %v; want both pods", got, err)
	}
	if _, err := nodes.Get("n"); err != nil {
		t.Errorf("an object of another type: %v", err)
	}

	api := cs.CoreV1().Pods("ns")
	update := func(name string, phase corev1.PodPhase) {
		t.Helper()
		p := pod(name)
		p.Status.Phase = phase
		if _, err := api.Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update("running", corev1.PodRunning)
	expect(t, events, "update running")
	update("running", corev1.PodSucceeded)
	expect(t, events, "delete running")
	shown()
	if err := api.Delete(t.Context(), "running", metav1.DeleteOptions{}); err != nil { // not seen again
		t.Fatal(err)
	}
	update("finished", corev1.PodRunning)
	expect(t, events, "add finished")
	shown("finished")
	if err := api.Delete(t.Context(), "finished", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, events, "delete finished")
	// What a relist has found missing is filtered by what it was.
	missed := view.InformerFor(&corev1.Pod{}, nil).(informer).gated(cache.ResourceEventHandlerFuncs{DeleteFunc: note("miss")})
	missed.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/finished", Obj: finished})
	missed.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/running", Obj: pod("running")})
	expect(t, events, "miss running")
}

func TestTrim(t *testing.T) {
	obj, err := Trim(pod("a"))
	if err != nil || obj.(*corev1.Pod).ManagedFields != nil {
		t.Errorf("%v, managedFields %v", err, obj.(*corev1.Pod).ManagedFields)
	}
	if _, err := Trim(cache.DeletedFinalStateUnknown{Key: "x"}); err != nil {
		t.Errorf("an object without metadata: %v", err)
	}
}

// TestViewClose: handlers added through a view see nothing after its end; other handlers go on.
func TestViewClose(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	cs := fake.NewClientset(pod("a"))
	shared := informers.NewSharedInformerFactory(cs, 0)
	other, otherSeen := seen()
	if _, err := shared.Core().V1().Pods().Informer().AddEventHandler(other); err != nil {
		t.Fatal(err)
	}
	view := NewView(shared)
	closed, closedSeen := seen()
	if _, err := view.Core().V1().Pods().Informer().AddEventHandler(closed); err != nil {
		t.Fatal(err)
	}
	view.Start(stop)
	expect(t, otherSeen, "a")
	expect(t, closedSeen, "a")
	view.Close()
	if _, err := cs.CoreV1().Pods("ns").Create(t.Context(), pod("c"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, otherSeen, "c")
	select {
	case got := <-closedSeen:
		t.Errorf("saw %q after the end", got)
	default:
	}
}

// TestIndexersTwice: two users of one informer may bring an index of the same name, before and after its start.
func TestIndexersTwice(t *testing.T) {
	shared := informers.NewSharedInformerFactory(fake.NewClientset(pod("a")), 0)
	byName := cache.Indexers{"name": func(obj any) ([]string, error) { return []string{obj.(metav1.Object).GetName()}, nil }}
	for range 2 {
		i := NewView(shared).Core().V1().Pods().Informer()
		if err := i.AddIndexers(byName); err != nil {
			t.Fatal(err)
		}
		if err := i.GetStore().Add(pod("a")); err != nil {
			t.Fatal(err)
		}
		if found, err := i.GetIndexer().ByIndex("name", "a"); err != nil || len(found) != 1 {
			t.Errorf("%v, %v", found, err)
		}
	}
}

// TestRuns: what a component adds through its view is removed with it, and a second run of the component can add the
// same.
func TestRuns(t *testing.T) {
	cs := fake.NewClientset()
	stop := make(chan struct{})
	defer close(stop)
	all := shared{informers.NewSharedInformerFactory(cs, 0), stop}
	index := cache.Indexers{"first": func(any) ([]string, error) { return nil, nil }}
	var last cache.SharedIndexInformer
	for run := range 2 {
		view := NewView(all)
		last = view.Core().V1().Pods().Informer()
		if err := last.AddIndexers(index); err != nil {
			t.Errorf("run %d: %v", run, err)
		}
		if err := last.GetIndexer().AddIndexers(index); err != nil {
			t.Errorf("run %d: %v", run, err)
		}
		if _, err := last.AddEventHandler(cache.ResourceEventHandlerFuncs{}); err != nil {
			t.Errorf("run %d: %v", run, err)
		}
		view.Start(nil)
		view.WaitForCacheSync(t.Context().Done())
		view.Close()
	}
	if _, err := last.AddEventHandler(cache.ResourceEventHandlerFuncs{}); err == nil {
		t.Error("a closed view accepts a handler, which would never be removed")
	}
}

func TestAs(t *testing.T) {
	pod := &corev1.Pod{}
	for name, tc := range map[string]struct {
		object any
		want   *corev1.Pod
	}{
		"an object":           {pod, pod},
		"a missed deletion":   {cache.DeletedFinalStateUnknown{Key: "a/b", Obj: pod}, pod},
		"another type":        {&corev1.Node{}, nil},
		"nothing but its key": {cache.DeletedFinalStateUnknown{Key: "a/b"}, nil},
	} {
		if got, ok := As[*corev1.Pod](tc.object); got != tc.want || ok != (tc.want != nil) {
			t.Errorf("%s: %v, %t", name, got, ok)
		}
	}
}
