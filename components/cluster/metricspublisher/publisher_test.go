package metricspublisher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"

	"kubelith.io/kubelith/base/names"
)

// theirs is the APIService of a metrics-server that a user has installed.
func theirs() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: names.MetricsAPIService},
		Spec:       apiregistrationv1.APIServiceSpec{Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"}},
	}
}

func TestPublishAndWithdraw(t *testing.T) {
	ctx := t.Context()
	c := fake.NewSimpleClientset().ApiregistrationV1().APIServices()
	for range 2 { // created, and found
		if err := publish(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Get(ctx, "v1beta1.metrics.k8s.io", metav1.GetOptions{})
	if err != nil || got.Spec.Service != nil || got.Spec.Group != "metrics.k8s.io" || got.Spec.Version != "v1beta1" {
		t.Fatalf("%v, %v", got, err)
	}
	for range 2 { // deleted, and not found
		if err := withdraw(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(ctx, names.MetricsAPIService, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}

	c = fake.NewSimpleClientset(theirs()).ApiregistrationV1().APIServices()
	if err := publish(ctx, c); err != nil {
		t.Errorf("another client's: %v", err)
	}
	if err := withdraw(ctx, c); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Get(ctx, names.MetricsAPIService, metav1.GetOptions{}); err != nil || got.Spec.Service == nil {
		t.Errorf("another client's: %v, %v", got, err)
	}
}

// TestRun: an APIService that somebody deletes is back after a second.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := fake.NewSimpleClientset()
		c := cs.ApiregistrationV1().APIServices()
		log, _ := logtest.NewNullLogger()
		ctx, cancel := context.WithCancel(t.Context())
		ended, isReady := make(chan error, 1), false
		go func() { ended <- New(Options{Log: log}).run(ctx, cs, func() { isReady = true }) }()
		for range 2 {
			time.Sleep(2 * settle)
			synctest.Wait()
			if got, err := c.Get(ctx, names.MetricsAPIService, metav1.GetOptions{}); err != nil || got.Spec.Service != nil || !isReady {
				t.Fatalf("%v, %v, ready %v", got, err, isReady)
			}
			if err := c.Delete(ctx, names.MetricsAPIService, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
