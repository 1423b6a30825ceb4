package policy

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// discovery is the time between looks for the custom resource, while there is none.
const discovery = 30 * time.Second

// clusterPolicies returns an informer of ClusterNetworkPolicies. Their custom resource is the administrator's to install: without
// it there are none.
func clusterPolicies(config *rest.Config) (cache.SharedIndexInformer, error) {
	types := runtime.NewScheme()
	if err := policyv1alpha2.Install(types); err != nil {
		return nil, err
	}
	version := schema.GroupVersion(policyv1alpha2.GroupVersion)
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &version
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, ""
	config.NegotiatedSerializer = serializer.NewCodecFactory(types).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of ClusterNetworkPolicies: %w", err)
	}
	of := cache.NewListWatchFromClient(client, "clusternetworkpolicies", metav1.NamespaceAll, fields.Everything())
	return cache.NewSharedIndexInformer(optional{of}, &policyv1alpha2.ClusterNetworkPolicy{}, 0, nil), nil
}

// optional is a custom resource that may be missing, come and go. Missing is an empty list without a version, and a
// watch that ends when it has come: a request each discovery.
type optional struct {
	of cache.ListerWatcherWithContext
}

// IsWatchListSemanticsUnSupported has the reflector list.
func (optional) IsWatchListSemanticsUnSupported() bool { return true }

func (o optional) List(options metav1.ListOptions) (runtime.Object, error) {
	return o.ListWithContext(context.Background(), options)
}

func (o optional) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return o.WatchWithContext(context.Background(), options)
}

func (o optional) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := o.of.ListWithContext(ctx, options)
	if apierrors.IsNotFound(err) {
		return &policyv1alpha2.ClusterNetworkPolicyList{}, nil
	}
	return list, err
}

func (o optional) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	for {
		w, err := o.of.WatchWithContext(ctx, options)
		missing := apierrors.IsNotFound(err)
		switch listed := options.ResourceVersion != ""; {
		case err != nil && !missing, err == nil && listed:
			return w, err
		case err == nil:
			w.Stop()
			fallthrough
		case listed:
			return nil, apierrors.NewResourceExpired("the custom resource has come or gone: list it")
		}
		select {
		case <-ctx.Done():
			return watch.NewEmptyWatch(), nil
		case <-time.After(discovery):
		}
	}
}
