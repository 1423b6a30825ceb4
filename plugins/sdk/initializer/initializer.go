// Package initializer runs initializers: programs that change new objects before other clients see them
// (docs/older-ways.md). It is separate so that plugins do not link client-go.
package initializer

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

// Initializer acts on hidden objects of one type, when its name is the first in their list.
type Initializer struct {
	// Name is what InitializerConfigurations call it: sidecar.example.com.
	Name string
	// Resource is the type.
	Resource schema.GroupVersionResource
	// Initialize changes the object. It is called again when the object has changed meanwhile, or when it fails.
	Initialize func(ctx context.Context, object *unstructured.Unstructured) error
}

// For returns an initializer of objects that are a T, such as corev1.Pod. Initialize may change the object; an error of
// Refuse deletes it, and any other is tried again.
func For[T any](name string, resource schema.GroupVersionResource, initialize func(ctx context.Context, object *T) error) Initializer {
	return Initializer{Name: name, Resource: resource, Initialize: func(ctx context.Context, o *unstructured.Unstructured) error {
		convert := runtime.DefaultUnstructuredConverter
		before, after := new(T), new(T)
		for _, into := range []*T{before, after} {
			if err := convert.FromUnstructured(o.Object, into); err != nil {
				return err
			}
		}
		if err := initialize(ctx, after); err != nil {
			return err
		}
		// Only what has changed, so that fields stay that T does not have.
		patch, err := difference(before, after)
		if err != nil {
			return err
		}
		whole, err := json.Marshal(o.Object)
		if err != nil {
			return err
		}
		if whole, err = jsonpatch.MergePatch(whole, patch); err != nil {
			return err
		}
		return o.UnmarshalJSON(whole)
	}}
}

// difference is the merge patch from one object to another.
func difference(before, after any) ([]byte, error) {
	a, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	return jsonpatch.CreateMergePatch(a, b)
}

type refusal string

func (r refusal) Error() string { return string(r) }

// Refuse is the error of an Initialize that does not want the object: it is deleted, and its creator gets the reason,
// as 403.
func Refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// Main runs initializers until SIGINT or SIGTERM. The program's flag --kubeconfig names the cluster; without it the
// program runs in a pod.
func Main(all ...Initializer) {
	file := flag.String("kubeconfig", "", "the `FILE` that names the cluster; default: that of the pod's service account")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *file)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = Run(ctx, config, all...)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// Run runs initializers until ctx ends. It fails at once when a client cannot be created.
func Run(ctx context.Context, config *rest.Config, all ...Initializer) error {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return includer{next} })
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	for _, i := range all {
		group.Go(func() { i.run(ctx, client) })
	}
	group.Wait()
	return nil
}

// includer requests hidden objects.
type includer struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t includer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	query := r.URL.Query()
	query.Set("includeUninitialized", "true")
	r.URL.RawQuery = query.Encode()
	return t.next.RoundTrip(r)
}

const workers = 4

func (i Initializer) run(ctx context.Context, client dynamic.Interface) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](20*time.Millisecond, 10*time.Second))
	informer := dynamicinformer.NewFilteredDynamicInformer(client, i.Resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	_ = informer.SetTransform(i.forget) // it has not started
	enqueue := func(o any) {
		if u, ok := o.(*unstructured.Unstructured); ok && i.next(u) {
			queue.Add(cache.MetaObjectToName(u))
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) }}) // it has not stopped
	var group sync.WaitGroup
	group.Go(func() { informer.RunWithContext(ctx) })
	for range workers {
		group.Go(func() {
			for {
				name, done := queue.Get()
				if done {
					return
				}
				if err := i.act(ctx, client.Resource(i.Resource).Namespace(name.Namespace), name.Name); err != nil && ctx.Err() == nil {
					log.Printf("%s: %s: %v, retrying", i.Name, name, err)
					queue.AddRateLimited(name)
				} else {
					queue.Forget(name)
				}
				queue.Done(name)
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	group.Wait()
}

// forget keeps little of what is not to be initialized.
func (i Initializer) forget(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok || i.next(u) {
		return o, nil
	}
	kept := &unstructured.Unstructured{}
	kept.SetGroupVersionKind(u.GroupVersionKind())
	kept.SetNamespace(u.GetNamespace())
	kept.SetName(u.GetName())
	kept.SetUID(u.GetUID())
	kept.SetResourceVersion(u.GetResourceVersion())
	return kept, nil
}

// next reports whether this initializer is next.
func (i Initializer) next(o *unstructured.Unstructured) bool {
	if _, failed, _ := unstructured.NestedMap(o.Object, "metadata", "initializers", "result"); failed {
		return false
	}
	pending, _, _ := unstructured.NestedSlice(o.Object, "metadata", "initializers", "pending")
	if len(pending) == 0 {
		return false
	}
	head, _ := pending[0].(map[string]any)
	return head["name"] == i.Name
}

// act initializes one object, as it is now.
func (i Initializer) act(ctx context.Context, objects dynamic.ResourceInterface, name string) error {
	found, err := objects.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !i.next(found) {
		return nil
	}
	changed := found.DeepCopy()
	var patch []byte
	var refused refusal
	switch err := i.Initialize(ctx, changed); {
	case errors.As(err, &refused):
		if patch, err = i.refuse(found, string(refused)); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if patch, err = i.finish(found, changed); err != nil {
			return err
		}
	}
	_, err = objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: i.Name})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// finish is the patch with the changes, and without this initializer. It holds for the object as it was found.
func (i Initializer) finish(found, changed *unstructured.Unstructured) ([]byte, error) {
	pending, _, err := unstructured.NestedSlice(found.Object, "metadata", "initializers", "pending")
	if err != nil {
		return nil, err
	}
	if len(pending) > 1 {
		err = unstructured.SetNestedSlice(changed.Object, pending[1:], "metadata", "initializers", "pending")
	} else {
		unstructured.RemoveNestedField(changed.Object, "metadata", "initializers")
	}
	if err != nil {
		return nil, err
	}
	patch, err := difference(found.Object, changed.Object)
	if err != nil {
		return nil, err
	}
	return ofVersion(patch, found.GetResourceVersion())
}

func (i Initializer) refuse(found *unstructured.Unstructured, reason string) ([]byte, error) {
	result := metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: i.Name + ": " + reason}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"initializers": map[string]any{"result": result}}})
	if err != nil {
		return nil, err
	}
	return ofVersion(patch, found.GetResourceVersion())
}

// ofVersion makes a patch fail if the object has changed meanwhile.
func ofVersion(patch []byte, version string) ([]byte, error) {
	condition, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": version}})
	if err != nil {
		return nil, err
	}
	return jsonpatch.MergeMergePatches(patch, condition)
}
