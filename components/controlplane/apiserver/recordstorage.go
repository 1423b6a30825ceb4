package apiserver

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	core "k8s.io/kubernetes/pkg/apis/core"

	"kubelith.io/kubelith/components/controlplane/apiserver/storagewrap"
	"kubelith.io/kubelith/trace/record"
)

// storage returns options whose storage records what it writes.
func (r *flight) storage(options generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	if r == nil {
		return options
	}
	return storagewrap.Options(options, func(resource schema.GroupResource, decorate generic.StorageDecorator) generic.StorageDecorator {
		return func(
			config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
			attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			s, destroy, err := decorate(config, prefix, keyFunc, newFunc, newListFunc, attrs, triggers, indexers)
			if err != nil {
				return s, destroy, err
			}
			return &recordedStorage{Interface: s, recorder: r, resource: resource, name: resource.String()}, destroy, nil
		}
	})
}

// recordedStorage records what requests write. Dry runs do not get here.
type recordedStorage struct {
	storage.Interface
	recorder *flight
	resource schema.GroupResource
	name     string // of the resource in a record.Ref
}

// Create implements storage.Interface.
func (s *recordedStorage) Create(ctx context.Context, key string, object, out runtime.Object, ttl uint64) error {
	if s.resource.Resource == "events" {
		err := s.Interface.Create(ctx, key, object, out, ttl)
		if err == nil {
			s.recorder.event(object)
		}
		return err
	}
	p := pendingFrom(ctx)
	if p == nil {
		return s.Interface.Create(ctx, key, object, out, ttl)
	}
	s.recorder.passTrace(object)
	began := time.Now()
	err := s.Interface.Create(ctx, key, object, out, ttl)
	end := time.Now()
	if err != nil {
		p.step("etcd", "", began, end.Sub(began), err.Error())
		return err
	}
	p.step("etcd", "", began, end.Sub(began), "")
	if out == nil {
		out = object
	}
	p.wrote(s, &state{}, out, end)
	return nil
}

// GuaranteedUpdate implements storage.Interface.
func (s *recordedStorage) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc,
	cached runtime.Object,
) error {
	if s.resource.Resource == "events" {
		err := s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
		if err == nil {
			s.recorder.event(out)
		}
		return err
	}
	p := pendingFrom(ctx)
	if p == nil {
		return s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
	}
	p.begins()
	var before *state
	var began time.Time
	tried := false // whether what update returned is being written
	err := s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions,
		func(found runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
			before = stateOf(found)
			changed, ttl, err := update(found, meta)
			if err == nil && before.uid == "" {
				s.recorder.passTrace(changed)
			}
			began, tried = time.Now(), err == nil
			return changed, ttl, err
		}, cached)
	if before == nil {
		return err
	}
	end := time.Now()
	if err != nil {
		if tried {
			p.step("etcd", "", began, end.Sub(began), err.Error())
		}
		p.found(s, before)
		return err
	}
	p.step("etcd", "", began, end.Sub(began), "")
	p.wrote(s, before, out, end)
	return nil
}

// Delete implements storage.Interface.
func (s *recordedStorage) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc,
	cached runtime.Object, options storage.DeleteOptions,
) error {
	p := pendingFrom(ctx)
	if p == nil {
		return s.Interface.Delete(ctx, key, out, preconditions, validate, cached, options)
	}
	p.begins()
	began, tried := time.Now(), true
	own := validate
	if validate != nil {
		own = func(ctx context.Context, object runtime.Object) error {
			err := validate(ctx, object)
			began, tried = time.Now(), err == nil
			return err
		}
	}
	err := s.Interface.Delete(ctx, key, out, preconditions, own, cached, options)
	end := time.Now()
	if err != nil {
		if tried {
			p.step("etcd", "", began, end.Sub(began), err.Error())
		}
		return err
	}
	p.step("etcd", "", began, end.Sub(began), "")
	p.removed(s, out, end)
	return nil
}

// begins notes that the handler has got to storage.
func (p *pending) begins() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decoded()
}

// concerns reports whether the request is about this storage. One that evicts a pod writes its PodDisruptionBudget,
// too.
func (p *pending) concerns(s *recordedStorage) bool {
	return p.info != nil && p.info.Resource == s.resource.Resource && p.info.APIGroup == s.resource.Group
}

// found notes an object that was found, for a request that fails.
func (p *pending) found(s *recordedStorage, before *state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before.uid != "" && p.concerns(s) {
		p.tried = true
		p.object = record.Object{Ref: record.Ref{UID: before.uid, Resource: s.name, Namespace: before.namespace, Name: before.name}}
	}
}

// wrote notes an object that was created or changed.
func (p *pending) wrote(s *recordedStorage, before *state, object runtime.Object, at time.Time) {
	o, err := meta.Accessor(object)
	if err != nil {
		return
	}
	if before.uid == "" || o.GetAnnotations()[traceAnnotation] != "" {
		p.keepTrace(o)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || !p.concerns(s) || before.version != "" && before.version == o.GetResourceVersion() { // nothing changed
		return
	}
	w := write{object: describe(s.name, object, o), version: o.GetResourceVersion()}
	w.object.Trace, w.object.Parent = p.traceOf(o, before.uid == "")
	if before.uid == "" {
		w.spec = true
	} else {
		after := stateOf(object)
		w.spec = before.generation != after.generation && after.spec(before) && p.info.Subresource != "binding" && before.deleting == after.deleting
		w.moments = moments(before, after, p.clock.At(at))
		if s.name == "nodes" && p.info.Subresource == "status" && len(w.moments) == 0 {
			return // a heartbeat
		}
	}
	p.keep(w)
}

// removed notes an object that is gone.
func (p *pending) removed(s *recordedStorage, object runtime.Object, at time.Time) {
	o, err := meta.Accessor(object)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || !p.concerns(s) {
		return
	}
	w := write{object: describe(s.name, object, o), version: o.GetResourceVersion()}
	w.moments = []record.Record{{Stage: record.Phase, Name: "Deleted", Start: p.clock.At(at)}}
	p.keep(w)
}

// keep adds a write. A later one of the same object follows it in one request: the last finalizer is removed, then the
// object.
func (p *pending) keep(w write) {
	for i := range p.writes {
		if b := &p.writes[i]; b.object.UID == w.object.UID {
			b.version, b.spec, b.moments = w.version, b.spec || w.spec, append(b.moments, w.moments...)
			return
		}
	}
	p.writes = append(p.writes, w)
}

// event records an Event as a moment of the object that it is about.
func (r *flight) event(object runtime.Object) {
	e, ok := object.(*core.Event)
	if !ok {
		return
	}
	about := e.InvolvedObject
	if about.Kind == "" || about.Name == "" {
		return
	}
	resource, _ := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(about.APIVersion, about.Kind))
	m := record.Record{
		Object: record.Ref{UID: string(about.UID), Resource: resource.GroupResource().String(), Namespace: about.Namespace, Name: about.Name},
		Stage:  record.Event, Name: e.Reason, Actor: e.ReportingController, Node: e.Source.Host, Start: r.clock.Now(),
	}
	if m.Actor == "" {
		m.Actor = e.Source.Component
	}
	if about.Kind == "Node" { // the kubelet gives the name as the UID
		m.Object.UID, m.Object.Namespace = "", ""
	}
	if e.Type == core.EventTypeWarning {
		m.Error = e.Message
	} else {
		m.Message = e.Message
	}
	r.to.Add(m)
}
