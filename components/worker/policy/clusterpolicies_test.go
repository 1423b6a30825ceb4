package policy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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

// defined is a custom resource's definition, as the API has it.
type defined struct {
	requests int
	events   *watch.FakeWatcher
	items    []apiextensionsv1.CustomResourceDefinition
}

func (d *defined) List(_ context.Context, o metav1.ListOptions) (*apiextensionsv1.CustomResourceDefinitionList, error) {
	d.requests++
	if o.FieldSelector != "metadata.name=clusternetworkpolicies.policy.networking.k8s.io" {
		return nil, errors.New("others are read too: " + o.FieldSelector)
	}
	return &apiextensionsv1.CustomResourceDefinitionList{ListMeta: metav1.ListMeta{ResourceVersion: "3"}, Items: d.items}, nil
}

func (d *defined) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	d.requests++
	d.events = watch.NewFakeWithChanSize(1, false)
	return d.events, nil
}

func definition(version string, established apiextensionsv1.ConditionStatus) *apiextensionsv1.CustomResourceDefinition {
	d := &apiextensionsv1.CustomResourceDefinition{}
	d.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1alpha1", Served: true}, {Name: version, Served: true}}
	d.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.NamesAccepted, Status: "True"}, {Type: apiextensionsv1.Established, Status: established}}
	return d
}

// TestOptional: an informer of a custom resource that comes and goes is synced at once, requests nothing while there is
// none, and follows it soon after its definition is established, although the API server serves it a moment later.
func TestOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r, d := &resource{from: start.Add(time.Hour + 500*time.Millisecond), to: start.Add(3 * time.Hour)}, &defined{}
		informer := cache.NewSharedIndexInformer(optional{r, d}, &policyv1alpha2.ClusterNetworkPolicy{}, 0, nil)
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
		d.events.Stop() // as the API server ends watches
		time.Sleep(time.Hour - time.Second)
		has("without the resource", 0)
		if r.requests != 2 || d.requests != 4 {
			t.Errorf("%d and %d requests in an hour", r.requests, d.requests)
		}
		for _, now := range []*apiextensionsv1.CustomResourceDefinition{
			definition("v1alpha2", "False"),
			definition("v1beta1", "True"), // a version that is not read here
			definition("v1alpha2", "True"),
		} {
			d.items = []apiextensionsv1.CustomResourceDefinition{*now}
			d.events.Modify(now)
			synctest.Wait()
		}
		time.Sleep(3 * time.Second) // and the reflector's own pause
		has("with the resource", 1)
		r.to = time.Now()
		time.Sleep(time.Second)
		r.current.Stop()
		time.Sleep(time.Minute) // the reflector's own pause
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
	if _, err := (optional{broken, &defined{}}).ListWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a list that fails is an empty one")
	}
	if _, err := (optional{broken, &defined{}}).WatchWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a watch that fails does not")
	}
}
