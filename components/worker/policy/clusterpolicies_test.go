package policy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// resource is a custom resource with one object, which exists between two times.
type resource struct {
	from, to time.Time
	requests int
	current  *watch.FakeWatcher
}

func (r *resource) there() error {
	r.requests++
	if now := time.Now(); now.Before(r.from) || now.After(r.to) {
		return apierrors.NewNotFound(schema.GroupResource{}, "")
	}
	return nil
}

func (r *resource) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	list := &policyv1alpha2.ClusterNetworkPolicyList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []policyv1alpha2.ClusterNetworkPolicy{policyNamed("a")}}
	return list, r.there()
}

func (r *resource) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	if err := r.there(); err != nil {
		return nil, err
	}
	r.current = watch.NewFake()
	return r.current, nil
}

func policyNamed(name string) policyv1alpha2.ClusterNetworkPolicy {
	return policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "5"}}
}

// TestOptional: an informer of a custom resource that comes and goes is synced at once, and asks for it each discovery.
func TestOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := &resource{from: start.Add(10*discovery + time.Second), to: start.Add(time.Hour)}
		informer := cache.NewSharedIndexInformer(optional{r}, &policyv1alpha2.ClusterNetworkPolicy{}, 0, nil)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			informer.RunWithContext(ctx)
		}()
		has := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if got := len(informer.GetStore().List()); got != want {
				t.Errorf("%s: %d policies, want %d", when, got, want)
			}
		}
		time.Sleep(time.Second)
		if synctest.Wait(); !informer.HasSynced() {
			t.Error("without the resource the informer is not synced")
		}
		time.Sleep(10 * discovery)
		has("without the resource", 0)
		if r.requests > 13 {
			t.Errorf("%d requests in %s", r.requests, 10*discovery)
		}
		time.Sleep(discovery + 3*time.Second) // and the reflector's own
		has("with the resource", 1)
		r.to = time.Now()
		time.Sleep(time.Second)
		r.current.Stop()
		time.Sleep(2 * discovery)
		has("after the resource", 0)
		stop()
		<-done
	})
}

func TestOptionalErrors(t *testing.T) {
	broken := &cache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, errors.New("no list") },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, errors.New("no watch") },
	}
	if _, err := (optional{broken}).ListWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a list that fails is an empty one")
	}
	if _, err := (optional{broken}).WatchWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a watch that fails does not")
	}
}
