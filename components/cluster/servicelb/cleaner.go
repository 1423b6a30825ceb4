package servicelb

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/lifecycle"
)

// NewCleaner returns the component that removes the addresses that an earlier run wrote. It is for a server without
// servicelb.
func NewCleaner(o Options) lifecycle.Component {
	return &lifecycle.Task{
		Called:   "servicelb-cleaner",
		Requires: []string{"apiserver"},
		Subject:  "remove the addresses of Services",
		Retry:    retryDelay,
		Log:      o.Log,
		Do: func(ctx context.Context) error {
			cs, err := kubernetes.NewForConfig(o.Client)
			if err != nil {
				return err
			}
			return withdraw(ctx, cs)
		},
	}
}

// withdraw removes the addresses that we own from every Service. It cannot use the shared informers: they drop the
// fields that name the owner.
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

// written reports whether we own a field of the Service.
func written(s *corev1.Service) bool {
	for _, f := range s.ManagedFields {
		if f.Manager == fieldManager && f.Operation == metav1.ManagedFieldsOperationApply {
			return true
		}
	}
	return false
}
