package servicelb

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/components/lifecycle"
)

// Cleaner takes back the addresses that an earlier run wrote. It is the component of a server without servicelb, and has
// nothing to do once that is done.
type Cleaner struct{ opts Options }

var _ lifecycle.Component = (*Cleaner)(nil)

// NewCleaner returns the component; nothing is started.
func NewCleaner(o Options) *Cleaner { return &Cleaner{o} }

// Name implements lifecycle.Component.
func (c *Cleaner) Name() string { return "servicelb-cleaner" }

// Needs implements lifecycle.Component.
func (c *Cleaner) Needs() []string { return []string{"apiserver"} }

// Run implements lifecycle.Component. Nobody waits for the end of its work.
func (c *Cleaner) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(c.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	ready()
	// The error is that of ctx.
	_ = wait.PollUntilContextCancel(ctx, retryDelay, true, func(ctx context.Context) (bool, error) {
		err := withdraw(ctx, cs)
		if err != nil && ctx.Err() == nil {
			c.opts.Log.Warnf("take back the addresses of Services, next try in %s: %v", retryDelay, err)
		}
		return err == nil, nil
	})
	<-ctx.Done()
	return nil
}

// withdraw removes from every Service the addresses that we own. The shared informers are of no use: they drop the fields
// that tell whose something is.
func withdraw(ctx context.Context, cs kubernetes.Interface) error {
	services, err := cs.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	var errs []error
	for i := range services.Items {
		if s := &services.Items[i]; written(s) {
			errs = append(errs, applyStatus(ctx, cs, s, nil))
		}
	}
	return errors.Join(errs...)
}

// written tells whether something in the Service is ours.
func written(s *corev1.Service) bool {
	for _, f := range s.ManagedFields {
		if f.Manager == fieldManager && f.Operation == metav1.ManagedFieldsOperationApply {
			return true
		}
	}
	return false
}
