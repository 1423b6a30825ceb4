package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/base/reconcile"
)

const (
	// fieldManager owns the fields that the files set.
	fieldManager = "kubelith-manifests"
	// requestTimeout bounds one request: webhooks may hang.
	requestTimeout = 30 * time.Second
	// servedWithin is how long the API may take to serve a newly defined kind.
	servedWithin = 20 * time.Second
	servedPoll   = 100 * time.Millisecond
)

// api is the cluster, through its API.
type api struct {
	client  kubernetes.Interface
	dynamic dynamic.Interface
	mapper  meta.ResettableRESTMapperWithContext
	// discovery is not cached, as that of mapper is.
	discovery discovery.DiscoveryInterfaceWithContext
}

var _ cluster = (*api)(nil)

func newAPI(cfg *rest.Config, log logrus.FieldLogger) (*api, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	// The API's warnings (of a deprecated kind, for example) are for the authors of the files.
	warning := rest.CopyConfig(cfg)
	warning.WarningHandler, warning.WarningHandlerWithContext = nil, warnings{log}
	dyn, err := dynamic.NewForConfig(warning)
	if err != nil {
		return nil, err
	}
	live := discovery.ToDiscoveryInterfaceWithContext(client.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapperWithContext(memory.NewMemCacheClientWithContext(live))
	return &api{client: client, dynamic: dyn, mapper: mapper, discovery: live}, nil
}

// warnings logs the API's warnings with their object.
type warnings struct{ log logrus.FieldLogger }

type aboutKey struct{} // of a request's context: its object

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _ string, text string) {
	if about, ok := ctx.Value(aboutKey{}).(string); ok && code == 299 && text != "" {
		w.log.Warnf("%s: %s", about, text)
	}
}

// parents implements cluster. A pass begins with it: it forgets the discovered kinds.
func (a *api) parents(ctx context.Context) (map[string]parent, error) {
	a.mapper.ResetWithContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := a.client.CoreV1().ConfigMaps(parentNamespace).List(ctx, metav1.ListOptions{LabelSelector: idLabel})
	if err != nil {
		return nil, err
	}
	parents := map[string]parent{}
	for _, c := range found.Items {
		p := parentOf(c.ObjectMeta)
		if c.Annotations[toolingAnnotation] == tooling && c.Labels[idLabel] == p.id() {
			parents[p.name] = p
		}
	}
	return parents, nil
}

// save implements cluster. A ConfigMap of the same name that is not our parent is left alone.
func (a *api) save(ctx context.Context, p parent) (types.UID, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	labels := map[string]string{idLabel: p.id()}
	if p.uid == "" {
		made, err := a.client.CoreV1().ConfigMaps(parentNamespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: p.name, Namespace: parentNamespace, Labels: labels, Annotations: p.annotations(),
		}}, metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("another client created ConfigMap %s/%s, the record of this file's objects: delete it or rename the file", parentNamespace, p.name)
		}
		if err != nil {
			return "", fmt.Errorf("create ConfigMap %s/%s: %w", parentNamespace, p.name, err)
		}
		return made.UID, nil
	}
	apply := applycorev1.ConfigMap(p.name, parentNamespace).WithUID(p.uid).WithLabels(labels).WithAnnotations(p.annotations())
	if _, err := a.client.CoreV1().ConfigMaps(parentNamespace).Apply(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		return "", fmt.Errorf("update ConfigMap %s/%s: %w", parentNamespace, p.name, err)
	}
	return p.uid, nil
}

// drop implements cluster.
func (a *api) drop(ctx context.Context, p parent) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := a.client.CoreV1().ConfigMaps(parentNamespace).Delete(ctx, p.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.uid}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete ConfigMap %s/%s: %w", parentNamespace, p.name, err)
	}
	return nil
}

// apply implements cluster.
func (a *api) apply(ctx context.Context, d document, partOf string, awaited bool) (reference, error) {
	object := d.object.DeepCopy()
	if partOf != "" {
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[partOfLabel] = partOf
		object.SetLabels(labels)
	}
	resource, namespaced, err := a.resource(ctx, object, awaited)
	if err != nil {
		return reference{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, aboutKey{}, describe(object)), requestTimeout)
	defer cancel()
	got, err := patch(ctx, resource, object)
	if err != nil {
		return reference{}, err
	}
	if got.GetDeletionTimestamp() != nil {
		return reference{}, errors.New("is being deleted: it will be applied once it is gone")
	}
	ref := reference{uid: got.GetUID()}
	if namespaced {
		ref.namespace = got.GetNamespace()
	}
	return ref, nil
}

// patch applies the object (server-side apply).
func patch(ctx context.Context, resource dynamic.ResourceInterface, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	return resource.Patch(ctx, object.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
		FieldManager:    fieldManager,
		Force:           ptr.To(true),
		FieldValidation: metav1.FieldValidationStrict,
	})
}

// resource returns the client for an object, in its namespace if its kind has one.
func (a *api) resource(ctx context.Context, object *unstructured.Unstructured, awaited bool) (client dynamic.ResourceInterface, namespaced bool, err error) {
	mapping, err := a.mapping(ctx, object.GroupVersionKind(), awaited)
	if err != nil {
		return nil, false, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return a.dynamic.Resource(mapping.Resource).Namespace(namespaceOf(object)), true, nil
	}
	return a.dynamic.Resource(mapping.Resource), false, nil
}

// mapping finds the resource of a kind. An unknown kind is discovered again; a newly defined one until it is served.
func (a *api) mapping(ctx context.Context, gvk schema.GroupVersionKind, awaited bool) (mapping *meta.RESTMapping, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if mapping, err = a.mapper.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version); !meta.IsNoMatchError(err) {
		return mapping, err
	}
	for deadline := time.Now().Add(servedWithin); ; {
		a.mapper.ResetWithContext(ctx)
		mapping, err = a.mapper.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version)
		if !awaited || !meta.IsNoMatchError(err) || time.Now().After(deadline) {
			return mapping, err
		}
		if !reconcile.Sleep(ctx, servedPoll) {
			return nil, ctx.Err()
		}
	}
}

// setOf implements cluster.
func (a *api) setOf(ctx context.Context, namespace string) (set string, exists bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ns, err := a.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	return ns.Labels[partOfLabel], true, nil
}

// members implements cluster. A kind that is not served any more has no objects; one whose server does not answer may.
func (a *api) members(ctx context.Context, p parent) ([]member, error) {
	var all []member
	for gk := range p.kinds {
		mapping, err := a.mapper.RESTMappingWithContext(ctx, gk)
		if meta.IsNoMatchError(err) {
			if err := a.answers(ctx, gk.Group); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		namespaces := []string{metav1.NamespaceAll}
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			namespaces = p.namespaces.UnsortedList()
		}
		for _, ns := range namespaces {
			found, err := a.list(ctx, a.dynamic.Resource(mapping.Resource).Namespace(ns), p.id())
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", mapping.Resource.GroupResource(), err)
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

// answers returns an error if the server of an API group does not answer: a mapper knows nothing of such a group.
func (a *api) answers(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, _, err := a.discovery.ServerGroupsAndResourcesWithContext(ctx)
	var failed *discovery.ErrGroupDiscoveryFailed
	if !errors.As(err, &failed) {
		return err
	}
	for version, err := range failed.Groups {
		if version.Group == group {
			return fmt.Errorf("the API %s does not answer: %w", version, err)
		}
	}
	return nil
}

func (a *api) list(ctx context.Context, resource dynamic.ResourceInterface, id string) ([]member, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := resource.List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + id})
	if err != nil {
		return nil, err
	}
	var all []member
	for i := range found.Items {
		all = append(all, member{&found.Items[i], metav1.GetControllerOf(&found.Items[i]) != nil})
	}
	return all, nil
}

// release implements cluster.
func (a *api) release(ctx context.Context, m member) error {
	resource, _, err := a.resource(ctx, m.object, false)
	if err != nil {
		return err
	}
	// With the UID, a different object of the same name is left alone.
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": m.object.GetUID(), "labels": map[string]any{partOfLabel: nil}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = resource.Patch(ctx, m.object.GetName(), types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// remove implements cluster.
func (a *api) remove(ctx context.Context, m member) error {
	resource, _, err := a.resource(ctx, m.object, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = resource.Delete(ctx, m.object.GetName(), metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: ptr.To(m.object.GetUID())},
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or replaced by another object of this name
		return nil
	}
	return err
}

// warn implements cluster.
func (a *api) warn(ctx context.Context, p parent, message string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: parentNamespace, Name: p.name, UID: p.uid}
	return events.Write(ctx, a.client, about, corev1.EventSource{Component: fieldManager}, corev1.EventTypeWarning, "ManifestFailed", message)
}
