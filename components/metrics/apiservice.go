package metrics

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	typedv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"kubelith.io/kubelith/components/lifecycle"
)

// apiService is the name of the object that every installation of metrics-server has. Without a Service in it, the
// aggregator serves the group from its own process.
const apiService = "v1beta1.metrics.k8s.io"

// publish makes the APIService when it is missing, and tells whether it is ours. A user's own metrics-server has
// one that names its Service, and wins.
func publish(ctx context.Context, c typedv1.APIServiceInterface) (ours bool, err error) {
	got, err := c.Get(ctx, apiService, metav1.GetOptions{ResourceVersion: "0"}) // from the watch cache
	if apierrors.IsNotFound(err) {
		_, err = c.Create(ctx, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: apiService, Labels: map[string]string{"app.kubernetes.io/managed-by": "kubelith"}},
			Spec: apiregistrationv1.APIServiceSpec{
				Group:                v1beta1.SchemeGroupVersion.Group,
				Version:              v1beta1.SchemeGroupVersion.Version,
				GroupPriorityMinimum: 100, // those of metrics-server's own manifest
				VersionPriority:      100,
			},
		}, metav1.CreateOptions{})
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	return got.Spec.Service == nil, nil
}

// withdraw deletes the APIService if it is ours.
func withdraw(ctx context.Context, c typedv1.APIServiceInterface) error {
	got, err := c.Get(ctx, apiService, metav1.GetOptions{})
	if err == nil && got.Spec.Service == nil {
		err = c.Delete(ctx, apiService, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &got.ResourceVersion}})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Cleaner removes the APIService that an earlier run made: it would promise an API that nobody serves. It is the
// component of a server without metrics-server, and has nothing to do once that is done.
type Cleaner struct{ opts Options }

var _ lifecycle.Component = (*Cleaner)(nil)

// NewCleaner returns the component; nothing is started.
func NewCleaner(o Options) *Cleaner { return &Cleaner{o} }

// Name implements lifecycle.Component.
func (c *Cleaner) Name() string { return "metrics-cleaner" }

// Needs implements lifecycle.Component.
func (c *Cleaner) Needs() []string { return []string{"apiserver"} }

// Run implements lifecycle.Component. Nobody waits for the end of its work.
func (c *Cleaner) Run(ctx context.Context, ready func()) error {
	cs, err := clientset.NewForConfig(c.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	ready()
	// The error is that of ctx.
	_ = wait.PollUntilContextCancel(ctx, resolution, true, func(ctx context.Context) (bool, error) {
		err := withdraw(ctx, cs.ApiregistrationV1().APIServices())
		if err != nil && ctx.Err() == nil {
			c.opts.Log.Warnf("delete the APIService %s, next try in %s: %v", apiService, resolution, err)
		}
		return err == nil, nil
	})
	<-ctx.Done()
	return nil
}
