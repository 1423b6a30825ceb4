package metrics

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// podLister gives metrics-server what it wants, the metadata of running pods, from the shared informer of whole pods.
type podLister struct{ pods corelisters.PodLister }

var _ cache.GenericLister = podLister{}

// List implements cache.GenericLister.
func (l podLister) List(selector labels.Selector) ([]runtime.Object, error) {
	pods, err := l.pods.List(selector)
	return running(pods), err
}

// Get implements cache.GenericLister. No pod is without a namespace.
func (l podLister) Get(name string) (runtime.Object, error) { return nil, notFound(name) }

// ByNamespace implements cache.GenericLister; no name means all namespaces.
func (l podLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return namespacedPods{l.pods.Pods(namespace)}
}

type namespacedPods struct {
	pods corelisters.PodNamespaceLister
}

// List implements cache.GenericNamespaceLister.
func (l namespacedPods) List(selector labels.Selector) ([]runtime.Object, error) {
	pods, err := l.pods.List(selector)
	return running(pods), err
}

// Get implements cache.GenericNamespaceLister.
func (l namespacedPods) Get(name string) (runtime.Object, error) {
	pod, err := l.pods.Get(name)
	if err != nil {
		return nil, err
	}
	if pod.Status.Phase != corev1.PodRunning {
		return nil, notFound(name)
	}
	return metadata(pod), nil
}

func notFound(name string) error { return apierrors.NewNotFound(corev1.Resource("pods"), name) }

func running(pods []*corev1.Pod) []runtime.Object {
	out := make([]runtime.Object, 0, len(pods))
	for _, p := range pods {
		if p.Status.Phase == corev1.PodRunning {
			out = append(out, metadata(p))
		}
	}
	return out
}

// metadata shares its maps with the pod of the cache: they are only read.
func metadata(p *corev1.Pod) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: p.ObjectMeta}
}
