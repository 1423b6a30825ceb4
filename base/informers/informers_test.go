package informers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	view := NewView(shared, nil)
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

func TestViewUsesItsOwnInformers(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	shared := informers.NewSharedInformerFactory(fake.NewClientset(pod("finished"), node), 0)
	own := informers.NewSharedInformerFactory(fake.NewClientset(pod("running")), 0)
	view := NewView(shared, own, &corev1.Pod{})
	pods, nodes := view.Core().V1().Pods().Lister(), view.Core().V1().Nodes().Lister()
	view.Start(stop)
	for kind, synced := range view.WaitForCacheSync(stop) {
		if !synced {
			t.Fatalf("%v not synced", kind)
		}
	}
	if _, err := pods.Pods("ns").Get("running"); err != nil {
		t.Errorf("pod of the view's own informer: %v", err)
	}
	if _, err := pods.Pods("ns").Get("finished"); err == nil {
		t.Error("the view shows a pod of the shared informer")
	}
	if _, err := nodes.Get("n"); err != nil {
		t.Errorf("node of the shared informer: %v", err)
	}
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
	view := NewView(shared, nil)
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
		i := NewView(shared, nil).Core().V1().Pods().Informer()
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
		view := NewView(all, nil)
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
