package policy

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
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

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
)

// clusterPolicies returns an informer of ClusterNetworkPolicies. Their custom resource is the administrator's to
// install: without it there are none.
func clusterPolicies(config *rest.Config) (cache.SharedIndexInformer, error) {
	types := runtime.NewScheme()
	if err := policyv1alpha2.Install(types); err != nil {
		return nil, err
	}
	definitions, err := apiextensions.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of CustomResourceDefinitions: %w", err)
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
	return cache.NewSharedIndexInformer(optional{of, definitions.CustomResourceDefinitions()}, &policyv1alpha2.ClusterNetworkPolicy{}, 0, nil), nil
}

// optional is a custom resource that may be missing, come and go. Missing is an empty list without a version, and a
// watch that ends when it has come. Until then its definition is watched, which costs nothing.
type optional struct {
	of          cache.ListerWatcherWithContext
	definitions definitions
}

// definitions are the CustomResourceDefinitions of the API.
type definitions interface {
	List(context.Context, metav1.ListOptions) (*apiextensionsv1.CustomResourceDefinitionList, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// The time between attempts to watch a resource whose definition is established: the API server takes a moment to serve
// it. It doubles from the first to the second.
const (
	settling = 100 * time.Millisecond
	settled  = 30 * time.Second
)

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
	for pause := settling; ; pause = min(2*pause, settled) {
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
		err = o.established(ctx)
		switch {
		case ctx.Err() != nil:
			return watch.NewEmptyWatch(), nil
		case err != nil:
			return nil, err
		}
		if !reconcile.Sleep(ctx, pause) {
			return watch.NewEmptyWatch(), nil
		}
	}
}

// established returns when the custom resource is defined and the API server serves it, or is about to.
func (o optional) established(ctx context.Context) error {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, names.ClusterPolicies).String()}
	for {
		list, err := o.definitions.List(ctx, options)
		if err != nil {
			return fmt.Errorf("look for the custom resource: %w", err)
		}
		for _, d := range list.Items {
			if isEstablished(&d) {
				return nil
			}
		}
		options.ResourceVersion = list.ResourceVersion
		w, err := o.definitions.Watch(ctx, options)
		if err != nil {
			return fmt.Errorf("wait for the custom resource: %w", err)
		}
		found := appears(ctx, w)
		w.Stop()
		if found || ctx.Err() != nil {
			return ctx.Err()
		}
		options.ResourceVersion = "" // the watch has ended, as watches do after some minutes
	}
}

// appears reads a watch until the definition is established, the watch ends or ctx does.
func appears(ctx context.Context, w watch.Interface) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case e, open := <-w.ResultChan():
			if !open || e.Type == watch.Error {
				return false
			}
			if d, ok := e.Object.(*apiextensionsv1.CustomResourceDefinition); ok && e.Type != watch.Deleted && isEstablished(d) {
				return true
			}
		}
	}
}

// isEstablished reports whether the API server serves the version that is read here.
func isEstablished(d *apiextensionsv1.CustomResourceDefinition) bool {
	serves := func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Served && v.Name == policyv1alpha2.GroupVersion.Version
	}
	if d.DeletionTimestamp != nil || !slices.ContainsFunc(d.Spec.Versions, serves) {
		return false
	}
	for _, c := range d.Status.Conditions {
		if c.Type == apiextensionsv1.Established {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
