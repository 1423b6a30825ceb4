package apiserver

import (
	"errors"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/components/client"
)

// TestReadyStays: /readyz does not fail again when a component starts an informer of a type that nobody had before.
func TestReadyStays(t *testing.T) {
	c, err := kubernetes.NewForConfig(serve(t).Config(client.APIServer))
	if err != nil {
		t.Fatal(err)
	}
	informers := shared.server.Informers()
	silent := informers.InformerFor(&batchv1.CronJob{}, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(&cache.ListWatch{
			ListFunc:  func(metav1.ListOptions) (runtime.Object, error) { return nil, errors.New("no answer") },
			WatchFunc: func(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
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
