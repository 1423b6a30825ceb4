package initializers

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/components/controlplane/apiserver/storagewrap"
)

// Storage returns options whose storage hides objects.
func (i *Initializers) Storage(options generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	if i.off {
		return options
	}
	return storagewrap.Options(options, i.decorate)
}

func (i *Initializers) decorate(resource schema.GroupResource, decorate generic.StorageDecorator) generic.StorageDecorator {
	return func(
		config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		s := &store{all: i, resource: resource, prefix: prefix, newFunc: newFunc, newListFunc: newListFunc}
		inner, destroy, err := decorate(config, prefix, keyFunc, newFunc, newListFunc, s.attributes(attrs), triggers, indexers)
		if err != nil {
			return inner, destroy, err
		}
		s.Interface = inner
		stop := func() {}
		if resource == configurationResource {
			stop = i.configurations.follow(inner, prefix, newListFunc)
		}
		return s, func() {
			stop()
			i.forget(s)
			destroy()
		}, nil
	}
}

// store hides the uninitialized objects of one type.
type store struct {
	storage.Interface
	all                  *Initializers
	resource             schema.GroupResource
	prefix               string
	newFunc, newListFunc func() runtime.Object
	// hides is set before the first hidden object is stored or read from etcd, and stays.
	hides atomic.Bool
}

// found notes that there may be hidden objects.
func (s *store) found() {
	if s.hides.Load() {
		return
	}
	s.all.mu.Lock()
	s.all.stores[s] = true
	s.all.mu.Unlock()
	s.hides.Store(true)
	s.all.hiding.Store(true)
}

func (i *Initializers) forget(s *store) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.stores, s)
}

// hiddenField is in the fields of hidden objects. A field selector cannot name it: it is no field of any type.
const hiddenField = "kubelith.io/hidden"

// attributes marks the fields of hidden objects, for visible. The watch cache calls it for each object that it holds.
func (s *store) attributes(next storage.AttrFunc) storage.AttrFunc {
	return func(o runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := next(o)
		if err != nil || !hidden(o) {
			return l, f, err
		}
		s.found()
		if f = maps.Clone(f); f == nil {
			f = fields.Set{}
		}
		f[hiddenField] = "true"
		return l, f, nil
	}
}

// visible selects, of what a field selector selects, the objects that are not hidden. With it, upstream's storage sends
// ADDED when an object appears, and nothing before.
type visible struct{ fields.Selector }

// Matches implements fields.Selector.
func (v visible) Matches(f fields.Fields) bool { return !f.Has(hiddenField) && v.Selector.Matches(f) }

// Empty implements fields.Selector.
func (visible) Empty() bool { return false }

// Transform implements fields.Selector.
func (v visible) Transform(change fields.TransformFunc) (fields.Selector, error) {
	inner, err := v.Selector.Transform(change)
	return visible{inner}, err
}

// DeepCopySelector implements fields.Selector.
func (v visible) DeepCopySelector() fields.Selector { return visible{v.Selector.DeepCopySelector()} }

// onlyVisible narrows a predicate.
func (s *store) onlyVisible(p storage.SelectionPredicate) storage.SelectionPredicate {
	if p.Field == nil {
		p.Field = fields.Everything()
	}
	if p.Label == nil {
		p.Label = labels.Everything()
	}
	if p.GetAttrs == nil {
		p.GetAttrs = storage.DefaultClusterScopedAttr
	}
	p.Field, p.GetAttrs = visible{p.Field}, s.attributes(p.GetAttrs)
	return p
}

// Get implements storage.Interface.
func (s *store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	if err := s.Interface.Get(ctx, key, opts, out); err != nil || !hidden(out) || includes(ctx) {
		return err
	}
	s.found()
	if opts.IgnoreNotFound {
		return runtime.SetZeroValue(out)
	}
	return storage.NewKeyNotFoundError(key, 0)
}

// GetList implements storage.Interface. The predicate is narrowed only where objects may be hidden: with a selector, a
// page has no count of the remaining objects.
func (s *store) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if includes(ctx) {
		return s.Interface.GetList(ctx, key, opts, list)
	}
	if !s.hides.Load() {
		if err := s.Interface.GetList(ctx, key, opts, list); err != nil || !anyHidden(list) {
			return err
		}
		// Another server wrote it, and this one's watch cache does not know it yet.
		s.found()
		if err := meta.SetList(list, nil); err != nil {
			return err
		}
	}
	opts.Predicate = s.onlyVisible(opts.Predicate)
	return s.Interface.GetList(ctx, key, opts, list)
}

func anyHidden(list runtime.Object) bool {
	found := false
	_ = meta.EachListItem(list, func(o runtime.Object) error { // an object that is no list has no items
		found = found || hidden(o)
		return nil
	})
	return found
}

// Watch implements storage.Interface. The predicate is always narrowed: objects may be hidden later.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if !includes(ctx) {
		opts.Predicate = s.onlyVisible(opts.Predicate)
	}
	return s.Interface.Watch(ctx, key, opts)
}

// Create implements storage.Interface.
func (s *store) Create(ctx context.Context, key string, object, out runtime.Object, ttl uint64) error {
	hides := hidden(object)
	if hides {
		s.found()
	}
	if out == nil {
		out = s.newFunc()
	}
	if err := s.Interface.Create(ctx, key, object, out, ttl); err != nil {
		return err
	}
	if hides {
		s.createdBy(ctx, key, out)
	}
	s.settle(ctx, out)
	return nil
}

func (s *store) createdBy(ctx context.Context, key string, out runtime.Object) {
	if o, err := meta.Accessor(out); err == nil {
		requestFrom(ctx).create(&created{store: s, key: key, name: o.GetName(), version: o.GetResourceVersion()})
	}
}

// settle returns when a new or changed configuration holds.
func (s *store) settle(ctx context.Context, object runtime.Object) {
	if s.resource == configurationResource {
		s.all.configurations.reach(ctx, object)
	}
}

// GuaranteedUpdate implements storage.Interface.
func (s *store) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc,
	cached runtime.Object,
) error {
	var creates, ends bool
	err := s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions,
		func(found runtime.Object, response storage.ResponseMeta) (runtime.Object, *uint64, error) {
			if hidden(found) && !includes(ctx) {
				s.found()
				return nil, nil, storage.NewKeyNotFoundError(key, 0)
			}
			changed, ttl, err := s.update(ctx, update, found, response)
			if err != nil {
				return changed, ttl, err
			}
			creates, ends = false, false
			if hidden(changed) {
				s.found()
				creates, ends = response.ResourceVersion == 0, over(changed)
			}
			return changed, ttl, nil
		}, cached)
	if err != nil {
		return err
	}
	if creates { // server-side apply creates in this way
		s.createdBy(ctx, key, out)
	}
	if ends {
		s.remove(ctx, key, out)
	}
	s.settle(ctx, out)
	return nil
}

// update calls upstream's function. Changes of immutable fields of a hidden object are allowed.
func (s *store) update(ctx context.Context, update storage.UpdateFunc, found runtime.Object, response storage.ResponseMeta) (runtime.Object, *uint64, error) {
	r := requestFrom(ctx)
	if r == nil || !hidden(found) {
		return update(found, response)
	}
	again := found.DeepCopyObject()
	changed, ttl, err := update(found, response)
	if err == nil || !onlyImmutable(err) {
		return changed, ttl, err
	}
	r.setRelaxed(again)
	defer r.setRelaxed(nil)
	return update(again, response)
}

// over reports whether a hidden object is to be deleted: its initialization failed, or a client has deleted it. In the
// latter case it has finalizers or a grace period. No controller sees the object, so none would end them.
func over(o runtime.Object) bool {
	a, err := meta.Accessor(o)
	if err != nil {
		return false
	}
	state, err := stateOf(o)
	return a.GetDeletionTimestamp() != nil || err == nil && state != nil && state.Result != nil
}

// remove deletes a hidden object whatever its finalizers. When that fails, sweep does it.
func (s *store) remove(ctx context.Context, key string, object runtime.Object) {
	o, err := meta.Accessor(object)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	uid := o.GetUID()
	err = s.Interface.Delete(ctx, key, s.newFunc(), &storage.Preconditions{UID: &uid}, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	if err != nil && !storage.IsNotFound(err) {
		s.all.log.Warnf("cannot delete %s %s, which was not initialized, retrying: %v", s.resource, o.GetName(), err)
	}
}

// Delete implements storage.Interface.
func (s *store) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc,
	cached runtime.Object, options storage.DeleteOptions,
) error {
	if err := s.Interface.Delete(ctx, key, out, preconditions, validate, cached, options); err != nil {
		return err
	}
	if s.resource == configurationResource {
		s.all.configurations.leave(ctx, out)
	}
	return nil
}
