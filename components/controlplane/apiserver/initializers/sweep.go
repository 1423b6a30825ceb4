package initializers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/base/reconcile"
)

// Start is a post-start hook: it returns when the configurations have been read. In a cluster that has no such type yet
// there are none.
func (i *Initializers) Start(hook genericapiserver.PostStartHookContext) error {
	if i.off {
		return nil
	}
	s, err := i.newSweeper(hook.LoopbackClientConfig)
	if err != nil {
		return err
	}
	i.hooks.Go(func() { i.read(hook, s.events.Discovery().RESTClient()) })
	i.hooks.Go(func() { s.run(hook) })
	i.started(hook)
	return nil
}

// started returns when the configurations have been read, however long that takes on a slow machine: a post-start hook
// that fails ends the process.
func (i *Initializers) started(ctx context.Context) {
	for ctx.Err() == nil {
		err := i.configurations.wait(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			i.log.Warnf("the start of the API server and new objects are blocked: %v", err)
		}
	}
}

// read sends the first request for the configurations: upstream creates the storage of a custom resource with it. A
// server that does not know all its paths yet asks for a retry in five seconds, but is ready in milliseconds: the
// client's own retries are off.
func (i *Initializers) read(ctx context.Context, client rest.Interface) {
	for {
		err := client.Get().AbsPath("/apis", configurationVersion.String(), configurationResource.Resource).Param("limit", "1").MaxRetries(0).Do(ctx).Error()
		if err == nil || ctx.Err() != nil {
			return
		}
		pause := 10 * time.Millisecond
		if apierrors.IsNotFound(err) { // the server knows all types, and not this one: it is being created
			i.configurations.setReady()
			pause = time.Second
		}
		reconcile.Sleep(ctx, pause)
	}
}

// sweeper deletes hidden objects whose initializers never came.
type sweeper struct {
	all     *Initializers
	objects dynamic.Interface
	mapper  meta.RESTMapper
	events  kubernetes.Interface
}

func (i *Initializers) newSweeper(c *rest.Config) (*sweeper, error) {
	cs, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	return &sweeper{all: i, objects: objects, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(cs.Discovery())), events: cs}, nil
}

// Sweep deletes, with a client of all rights, the hidden objects that are too old at now.
func (i *Initializers) Sweep(ctx context.Context, c *rest.Config, now time.Time) error {
	s, err := i.newSweeper(c)
	if err == nil {
		s.sweep(ctx, now)
	}
	return err
}

func (s *sweeper) run(ctx context.Context) {
	for {
		if !reconcile.Sleep(ctx, sweepEvery) {
			return
		}
		s.sweep(ctx, time.Now())
	}
}

// sweep deletes what is older than maxAge at now, and what should be gone already.
func (s *sweeper) sweep(ctx context.Context, now time.Time) {
	s.all.mu.Lock()
	stores := slices.Collect(maps.Keys(s.all.stores))
	s.all.mu.Unlock()
	for _, store := range stores {
		if err := s.sweepStore(ctx, store, now); err != nil && ctx.Err() == nil {
			s.all.log.Warnf("cannot delete uninitialized %s, retrying: %v", store.resource, err)
		}
	}
}

// uninitialized selects hidden objects.
type uninitialized struct{ fields.Selector }

// Matches implements fields.Selector.
func (uninitialized) Matches(f fields.Fields) bool { return f.Has(hiddenField) }

// Empty implements fields.Selector.
func (uninitialized) Empty() bool { return false }

// DeepCopySelector implements fields.Selector.
func (u uninitialized) DeepCopySelector() fields.Selector { return u }

func (s *sweeper) sweepStore(ctx context.Context, from *store, now time.Time) error {
	list := from.newListFunc()
	err := from.Interface.GetList(ctx, from.prefix, storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
		Label: labels.Everything(), Field: uninitialized{fields.Everything()}, GetAttrs: from.attributes(storage.DefaultNamespaceScopedAttr),
	}}, list)
	if err != nil {
		return err
	}
	return meta.EachListItem(list, func(object runtime.Object) error {
		o, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		old := now.Sub(o.GetCreationTimestamp().Time) >= maxAge
		if !old && !over(object) {
			return nil
		}
		if err := s.remove(ctx, from, o); err != nil || !old {
			return err
		}
		state, err := stateOf(object)
		if err != nil {
			return err
		}
		s.tell(ctx, from, object, o, state)
		return nil
	})
}

// remove deletes an object as any client does, so that the API server gives back what belongs to it, such as the
// address of a Service.
func (s *sweeper) remove(ctx context.Context, from *store, o metav1.Object) error {
	resource, err := s.mapper.ResourceFor(from.resource.WithVersion(""))
	if err != nil {
		return err
	}
	err = s.objects.Resource(resource).Namespace(o.GetNamespace()).Delete(ctx, o.GetName(), *metav1.NewPreconditionDeleteOptions(string(o.GetUID())))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// tell writes an Event. The object is gone even if that fails.
func (s *sweeper) tell(ctx context.Context, from *store, object runtime.Object, o metav1.Object, state *State) {
	text := fmt.Sprintf("initializer %q did not finish within %s: the object was deleted", state.head(), maxAge)
	s.all.log.Warnf("%s %s/%s: %s", from.resource, o.GetNamespace(), o.GetName(), text)
	kind, err := s.mapper.KindFor(from.resource.WithVersion(""))
	if err != nil {
		return
	}
	about := &corev1.ObjectReference{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
	}
	source := corev1.EventSource{Component: "kubelith.io/initializers"}
	err = events.Write(ctx, s.events, about, source, corev1.EventTypeWarning, "InitializationTimedOut", text)
	if err != nil {
		s.all.log.Warnf("cannot write an Event for it: %v", err)
	}
}
