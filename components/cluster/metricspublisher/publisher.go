// Package metricspublisher is the component "metrics-publisher", which keeps the APIService that routes requests for
// resource metrics back to the servers, each of which serves them (components/controlplane/metrics). Where that is
// disabled, Cleaner removes it.
package metricspublisher

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	typedv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
)

const (
	// retryAfter is the time between attempts.
	retryAfter = 15 * time.Second
	// settle keeps somebody who deletes the APIService again and again from a loop without a pause.
	settle = time.Second
)

// Options configures the components. All fields are required.
type Options struct {
	// Client calls the apiserver. Its identity watches, creates and deletes one APIService.
	Client *rest.Config
	// Log receives failures.
	Log logrus.FieldLogger
}

// Publisher is the component.
type Publisher struct {
	opts Options
	work lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Publisher)(nil)
	_ lifecycle.Health    = (*Publisher)(nil)
)

// New returns the component; nothing is started.
func New(o Options) *Publisher { return &Publisher{opts: o} }

// Name implements lifecycle.Component.
func (p *Publisher) Name() string { return "metrics-publisher" }

// Needs implements lifecycle.Component.
func (p *Publisher) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Publisher) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: no look takes too long.
func (p *Publisher) Healthy(ctx context.Context) error { return p.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once: no component waits for metrics.
func (p *Publisher) Run(ctx context.Context, ready func()) error {
	p.work.Reset()
	cs, err := clientset.NewForConfig(p.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	return p.run(ctx, cs, ready)
}

// run publishes at once, and after each change of the APIService.
func (p *Publisher) run(ctx context.Context, cs clientset.Interface, ready func()) error {
	factory := externalversions.NewSharedInformerFactoryWithOptions(cs, 0, externalversions.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, names.MetricsAPIService).String() // it may watch no other
	}))
	changed := reconcile.NewSignal()
	if _, err := factory.Apiregistration().V1().APIServices().Informer().AddEventHandler(informers.OnEvent(changed.Send)); err != nil {
		return fmt.Errorf("watch the APIService %s: %w", names.MetricsAPIService, err)
	}
	watching, stop := context.WithCancel(ctx)
	defer func() { stop(); factory.Shutdown() }()
	factory.Start(watching.Done())
	ready()
	reconcile.Loop(ctx, changed, settle, func() time.Duration {
		defer p.work.Begin("publishing the APIService")()
		if err := publish(ctx, cs.ApiregistrationV1().APIServices()); err != nil && ctx.Err() == nil {
			p.opts.Log.Warnf("cannot publish APIService %s, retrying in %s: %v", names.MetricsAPIService, retryAfter, err)
			return retryAfter
		}
		return 0
	})
	return nil
}

// publish creates the APIService when it is missing. The APIService of a user's own metrics-server names its Service,
// and takes precedence.
func publish(ctx context.Context, c typedv1.APIServiceInterface) error {
	_, err := c.Get(ctx, names.MetricsAPIService, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = c.Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: names.MetricsAPIService, Labels: map[string]string{names.ManagedByLabel: names.ManagedBy}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group:                v1beta1.SchemeGroupVersion.Group,
			Version:              v1beta1.SchemeGroupVersion.Version,
			GroupPriorityMinimum: 100, // as in metrics-server's own manifest
			VersionPriority:      100,
		},
	}, metav1.CreateOptions{})
	return err
}

// withdraw deletes the APIService if it is ours.
func withdraw(ctx context.Context, c typedv1.APIServiceInterface) error {
	got, err := c.Get(ctx, names.MetricsAPIService, metav1.GetOptions{})
	if err == nil && got.Spec.Service == nil {
		err = c.Delete(ctx, names.MetricsAPIService, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &got.ResourceVersion}})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// NewCleaner returns the component that removes the APIService that an earlier run created: it would announce an API
// that is not served. It is for a cluster without metrics-server.
func NewCleaner(o Options) lifecycle.Component {
	return &lifecycle.Task{
		Called:   "metrics-cleaner",
		Requires: []string{"apiserver"},
		Subject:  "delete the APIService " + names.MetricsAPIService,
		Retry:    retryAfter,
		Log:      o.Log,
		Do: func(ctx context.Context) error {
			cs, err := clientset.NewForConfig(o.Client)
			if err != nil {
				return err
			}
			return withdraw(ctx, cs.ApiregistrationV1().APIServices())
		},
	}
}
