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
	own                             informers.SharedInformerFactory
	ownTypes                        map[reflect.Type]bool

	opened chan struct{}
	once   sync.Once

	mu      sync.Mutex
	closed  bool
	removes []func()
}

var _ informers.SharedInformerFactory = (*View)(nil)

// NewView returns a view of shared. For objects of ownTypes it uses the informers of own instead, which it starts and
// which may be nil.
func NewView(shared, own informers.SharedInformerFactory, ownTypes ...runtime.Object) *View {
	v := &View{SharedInformerFactory: shared, own: own, ownTypes: map[reflect.Type]bool{}, opened: make(chan struct{})}
	for _, t := range ownTypes {
		v.ownTypes[reflect.TypeOf(t)] = true
	}
	return v
}

// InformerFor implements informers.SharedInformerFactory; all typed informers of the view come from here.
func (v *View) InformerFor(obj runtime.Object, newFunc internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	factory := v.SharedInformerFactory
	if v.ownTypes[reflect.TypeOf(obj)] {
		factory = v.own
	}
	return informer{factory.InformerFor(obj, newFunc), v}
}

// ForResource implements informers.SharedInformerFactory. It does not know ownTypes.
func (v *View) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	i, err := v.SharedInformerFactory.ForResource(r)
	return generic{i, v}, err
}

type generic struct {
	informers.GenericInformer
	view *View
}

func (g generic) Informer() cache.SharedIndexInformer {
	return informer{g.GenericInformer.Informer(), g.view}
}

// Start implements informers.SharedInformerFactory.
func (v *View) Start(stop <-chan struct{}) {
	if v.own != nil {
		v.own.Start(stop)
	}
	v.SharedInformerFactory.Start(stop)
	v.once.Do(func() { close(v.opened) })
}

// StartWithContext implements informers.SharedInformerFactory.
func (v *View) StartWithContext(ctx context.Context) { v.Start(ctx.Done()) }

// WaitForCacheSync implements informers.SharedInformerFactory.
func (v *View) WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool {
	synced := v.SharedInformerFactory.WaitForCacheSync(stop)
	if v.own != nil {
		for t, ok := range v.own.WaitForCacheSync(stop) {
			synced[t] = ok
		}
	}
	return synced
}

// Close removes the event handlers added through the view, and refuses others. It is for users that end before the
// process; upstream's never remove theirs. Handlers of the view's own informers end with them.
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

// informer is a shared informer with gated handlers.
type informer struct {
	cache.SharedIndexInformer
	view *View
}

func (i informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.noted(i.SharedIndexInformer.AddEventHandler(gate{h, i.view.opened}))
}

func (i informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.noted(i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(gate{h, i.view.opened}, period))
}

func (i informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.noted(i.SharedIndexInformer.AddEventHandlerWithOptions(gate{h, i.view.opened}, o))
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

// GetIndexer returns one that takes indexers as the informer does.
func (i informer) GetIndexer() cache.Indexer { return indexer{i.SharedIndexInformer.GetIndexer()} }

type indexer struct{ cache.Indexer }

// AddIndexers adds the indexers with new names.
func (i indexer) AddIndexers(indexers cache.Indexers) error {
	return addNew(i.Indexer.AddIndexers, i.Indexer, indexers)
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
