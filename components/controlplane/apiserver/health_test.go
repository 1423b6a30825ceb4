package apiserver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/client"
)

// TestReadyStays: /readyz does not fail again when a component starts the first informer of a type.
func TestReadyStays(t *testing.T) {
	c, err := kubernetes.NewForConfig(serve(t).Config(client.APIServer))
	if err != nil {
		t.Fatal(err)
	}
	informers := shared.server.Informers()
	silent := informers.InformerFor(&batchv1.CronJob{}, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(&cache.ListWatch{
			ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, errors.New("no answer") },
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
		}, &batchv1.CronJob{}, 0, cache.Indexers{})
	})
	informers.Start(nil)
	if silent.HasSynced() {
		t.Fatal("the informer has synced without an answer")
	}
	if err := readyz(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// TestChecksOfUpstream: the checks exist by whose names clients know that RBAC's policy and the priority classes exist.
func TestChecksOfUpstream(t *testing.T) {
	c, err := kubernetes.NewForConfig(serve(t).Config(client.APIServer))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		text, err := c.Discovery().RESTClient().Get().AbsPath(path).Param("verbose", "1").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"scheduling/bootstrap-system-priority-classes", "rbac/bootstrap-roles"} {
			if want := "[+]poststarthook/" + name + " ok\n"; !strings.Contains(string(text), want) {
				t.Errorf("%s has no %q", path, want)
			}
		}
	}
}
