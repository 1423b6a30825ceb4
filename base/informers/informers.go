// Package informers has the informers that the components of the process share: one cache of the cluster, not one per
// component.
//
// Shared wraps the apiserver's factory. A View is one component's part of it (the controllers, the scheduler). Upstream
// builds such a component on a factory that has not been started, and some constructors rely on that: they add an event
// handler first and set the fields that it uses afterwards. Here the shared informers are already running, so a View
// holds events back until the component starts it.
//
// One, OnEvent and Start are for the informers that a component has for itself.
//
// The package knows no component and creates no client.
package informers

import (
	"context"
	"errors"
	"reflect"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// resync is how often shared informers hand every object to their handlers again. Upstream's apiserver uses 10 minutes,
// its controller-manager 12 to 24 hours; the longer one suits both, as no handler relies on resync for progress.
const resync = 12 * time.Hour

// Trim drops managedFields, which no user of the informers reads, as upstream's apiserver, controller-manager and
// scheduler do.
func Trim(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// NewShared creates the factory of the process. Its informers end with stop, whichever component starts them: a
// component that stops must not end them for the others.
func NewShared(c kubernetes.Interface, stop <-chan struct{}) (informers.SharedInformerFactory, error) {
	name, err := cache.NewInformerName("kubelith")
	if err != nil {
		return nil, err
	}
	return shared{informers.NewSharedInformerFactoryWithOptions(c, resync, informers.WithTransform(Trim), informers.WithInformerName(name)), stop}, nil
}

// One returns a factory whose informers watch one object, by its name: an identity that may read no other may do so.
// The namespace of a Node is "".
func One(c kubernetes.Interface, namespace, name string) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithTransform(Trim), informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}))
}

// OnEvent returns a handler that calls do for each event.
func OnEvent(do func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{AddFunc: func(any) { do() }, UpdateFunc: func(_, _ any) { do() }, DeleteFunc: func(any) { do() }}
}

// As returns the object that a handler gets, also that of a deletion which the informer has missed and found out later
// (cache.DeletedFinalStateUnknown). It reports false for one of another type.
func As[T any](object any) (T, bool) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	t, ok := object.(T)
	return t, ok
}

// Start starts the informers of factories that belong to one component. stop ends them and waits.
func Start(ctx context.Context, factories ...informers.SharedInformerFactory) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	for _, f := range factories {
		f.Start(ctx.Done())
	}
	return func() {
		cancel()
		for _, f := range factories {
			f.Shutdown()
		}
	}
}

type shared struct {
	informers.SharedInformerFactory
	stop <-chan struct{}
}

// Start implements informers.SharedInformerFactory. The informers are the process's, so their goroutines do not have
// the label of the component that starts them: a panic there ends more than that component (lifecycle.Label).
func (f shared) Start(<-chan struct{}) {
	started := make(chan struct{})
	go func() {
		defer close(started)
		pprof.SetGoroutineLabels(context.Background())
		f.SharedInformerFactory.Start(f.stop)
	}()
	<-started
}

// StartWithContext implements informers.SharedInformerFactory.
func (f shared) StartWithContext(context.Context) { f.Start(nil) }

// View is a factory whose event handlers see nothing before Start.
//
//	made --Start--> open: events that came meanwhile are delivered in order
type View struct {
	informers.SharedInformerFactory // the shared one

	filters map[reflect.Type]func(any) bool // see Only
	opened  chan struct{}
	once    sync.Once

	mu      sync.Mutex
	closed  bool
	removes []func()
}

var _ informers.SharedInformerFactory = (*View)(nil)

// NewView returns a view of shared that shows all objects.
func NewView(shared informers.SharedInformerFactory) *View {
	return &View{SharedInformerFactory: shared, filters: map[reflect.Type]func(any) bool{}, opened: make(chan struct{})}
}

// Only makes a view show those objects of a type that keep is true for, in listers and indexes too: as an informer that
// watches with a selector, without a watch and copies of its own. An object that keep is no longer true for is seen as
// deleted. Lists of keys and the informers of ForResource are not filtered. Call Only before the view gives an informer
// to anyone.
func Only[T runtime.Object](v *View, keep func(T) bool) {
	v.filters[reflect.TypeFor[T]()] = func(obj any) bool {
		t, ok := As[T](obj)
		return ok && keep(t)
	}
}

// InformerFor implements informers.SharedInformerFactory; all typed informers of the view come from here.
func (v *View) InformerFor(obj runtime.Object, newFunc internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return informer{v.SharedInformerFactory.InformerFor(obj, newFunc), v, v.filters[reflect.TypeOf(obj)]}
}

// ForResource implements informers.SharedInformerFactory. Its informers show all objects (Only).
func (v *View) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	i, err := v.SharedInformerFactory.ForResource(r)
	return generic{i, v}, err
}

type generic struct {
	informers.GenericInformer
	view *View
}

func (g generic) Informer() cache.SharedIndexInformer {
	return informer{g.GenericInformer.Informer(), g.view, nil}
}

// Start implements informers.SharedInformerFactory.
func (v *View) Start(stop <-chan struct{}) {
	v.SharedInformerFactory.Start(stop)
	v.once.Do(func() { close(v.opened) })
}

// StartWithContext implements informers.SharedInformerFactory.
func (v *View) StartWithContext(ctx context.Context) { v.Start(ctx.Done()) }

// Close removes the event handlers added through the view, and refuses others. A handler that is being called may still
// run when it returns. Close is for users that end before the process; upstream's never remove theirs.
func (v *View) Close() {
	v.once.Do(func() { close(v.opened) }) // releases every waiting handler
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	for _, remove := range v.removes {
		remove()
	}
	v.removes = nil
}

// informer is a shared informer with gated handlers, which shows those objects that keep is true for; nil is all.
type informer struct {
	cache.SharedIndexInformer
	view *View
	keep func(any) bool
}

// gated returns the handler that the shared informer calls for h.
func (i informer) gated(h cache.ResourceEventHandler) cache.ResourceEventHandler {
	if i.keep != nil {
		h = cache.FilteringResourceEventHandler{Handler: h, FilterFunc: i.keep}
	}
	return gate{h, i.view.opened}
}

func (i informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.noted(i.SharedIndexInformer.AddEventHandler(i.gated(h)))
}

func (i informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.noted(i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(i.gated(h), period))
}

func (i informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.noted(i.SharedIndexInformer.AddEventHandlerWithOptions(i.gated(h), o))
}

// noted records what View.Close must remove.
func (i informer) noted(r cache.ResourceEventHandlerRegistration, err error) (cache.ResourceEventHandlerRegistration, error) {
	if err != nil {
		return r, err
	}
	i.view.mu.Lock()
	defer i.view.mu.Unlock()
	if i.view.closed {
		_ = i.RemoveEventHandler(r)
		return nil, errClosed
	}
	i.view.removes = append(i.view.removes, func() { _ = i.RemoveEventHandler(r) })
	return r, nil
}

// errClosed is for a handler that would never be removed.
var errClosed = errors.New("the component that adds this handler has ended")

// AddIndexers adds the indexers with new names: two users of a shared informer may bring the same, and so may the
// second run of one.
func (i informer) AddIndexers(indexers cache.Indexers) error {
	return addNew(i.SharedIndexInformer.AddIndexers, i.SharedIndexInformer.GetIndexer(), indexers)
}

// GetIndexer returns one that takes indexers and shows objects as the informer does.
func (i informer) GetIndexer() cache.Indexer {
	all := indexer{i.SharedIndexInformer.GetIndexer()}
	if i.keep == nil {
		return all
	}
	return filtered{all, i.keep}
}

// GetStore implements cache.SharedInformer.
func (i informer) GetStore() cache.Store { return i.GetIndexer() }

type indexer struct{ cache.Indexer }

// AddIndexers adds the indexers with new names.
func (i indexer) AddIndexers(indexers cache.Indexers) error {
	return addNew(i.Indexer.AddIndexers, i.Indexer, indexers)
}

// filtered is an indexer that returns those objects that keep is true for. Keys of objects and values of indexes are
// those of all.
type filtered struct {
	cache.Indexer
	keep func(any) bool
}

func (f filtered) List() []any {
	return slices.DeleteFunc(f.Indexer.List(), f.drop)
}

func (f filtered) Get(obj any) (any, bool, error) { return f.one(f.Indexer.Get(obj)) }

func (f filtered) GetByKey(key string) (any, bool, error) { return f.one(f.Indexer.GetByKey(key)) }

func (f filtered) Index(name string, obj any) ([]any, error) {
	all, err := f.Indexer.Index(name, obj)
	return slices.DeleteFunc(all, f.drop), err
}

func (f filtered) ByIndex(name, value string) ([]any, error) {
	all, err := f.Indexer.ByIndex(name, value)
	return slices.DeleteFunc(all, f.drop), err
}

func (f filtered) drop(obj any) bool { return !f.keep(obj) }

func (f filtered) one(obj any, exists bool, err error) (any, bool, error) {
	if !exists || err != nil || f.drop(obj) {
		return nil, false, err
	}
	return obj, true, nil
}

func addNew(add func(cache.Indexers) error, to cache.Indexer, indexers cache.Indexers) error {
	for name, index := range indexers {
		if err := add(cache.Indexers{name: index}); err != nil {
			if _, exists := to.GetIndexers()[name]; !exists {
				return err
			}
		}
	}
	return nil
}

// gate holds events back. In client-go each handler has its own goroutine and unbounded buffer, so that other handlers
// do not wait.
type gate struct {
	cache.ResourceEventHandler
	opened <-chan struct{}
}

func (g gate) OnAdd(obj any, initial bool) {
	<-g.opened
	g.ResourceEventHandler.OnAdd(obj, initial)
}

func (g gate) OnUpdate(old, obj any) {
	<-g.opened
	g.ResourceEventHandler.OnUpdate(old, obj)
}

func (g gate) OnDelete(obj any) {
	<-g.opened
	g.ResourceEventHandler.OnDelete(obj)
}
