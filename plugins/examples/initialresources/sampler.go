package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// sampler adds what containers use to the history.
type sampler struct {
	client  dynamic.Interface
	pods    cache.SharedIndexInformer // has the images: measurements do not
	history *history
	counted map[string]time.Time // the last measurement of each pod
}

var (
	podResource     = corev1.SchemeGroupVersion.WithResource("pods")
	metricsResource = metricsv1beta1.SchemeGroupVersion.WithResource("pods")
)

func newSampler(client dynamic.Interface, h *history) *sampler {
	return &sampler{
		client: client, history: h,
		pods: dynamicinformer.NewFilteredDynamicInformer(client, podResource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer(),
	}
}

// follow watches the pods, and returns when it knows them all.
func (s *sampler) follow(ctx context.Context) {
	// Of a new informer it cannot fail.
	_ = s.pods.SetTransform(strip)
	go s.pods.Run(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), s.pods.HasSynced)
}

// strip keeps of a pod what is needed, so that many pods fit into the plugin's memory.
func strip(object any) (any, error) {
	full, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(full.Object, &pod); err != nil {
		return nil, err
	}
	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
	}}
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		small.Spec.Containers = append(small.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
	}
	return small, nil
}

// round adds the measurements that are new.
func (s *sampler) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	list, err := s.client.Resource(metricsResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	counted := make(map[string]time.Time, len(list.Items))
	for _, item := range list.Items {
		var m metricsv1beta1.PodMetrics
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &m); err != nil {
			return fmt.Errorf("metrics of pod %s: %w", item.GetName(), err)
		}
		key := m.Namespace + "/" + m.Name
		object, exists, err := s.pods.GetStore().GetByKey(key)
		pod, ok := object.(*corev1.Pod)
		if err != nil || !exists || !ok || m.Timestamp.Before(&pod.CreationTimestamp) { // of an earlier pod of the name
			continue
		}
		if m.Timestamp.After(s.counted[key]) {
			s.count(pod, &m)
		}
		counted[key] = m.Timestamp.Time
	}
	s.counted = counted
	return nil
}

func (s *sampler) count(pod *corev1.Pod, m *metricsv1beta1.PodMetrics) {
	for _, measured := range m.Containers {
		for _, c := range pod.Spec.Containers {
			if c.Name == measured.Name {
				s.history.add(image{pod.Namespace, c.Image}, measured.Usage.Cpu().MilliValue(), measured.Usage.Memory().Value(), m.Timestamp.Time)
			}
		}
	}
}
