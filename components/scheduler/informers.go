package scheduler

import (
	"context"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	corev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/scheduler"
)

// factory is the shared informer factory with the scheduler's own Pod informer
// in place of the shared one.
type factory struct {
	informers.SharedInformerFactory
	// pods has nothing but the filtered Pod informer.
	pods informers.SharedInformerFactory
}

func newFactory(shared informers.SharedInformerFactory, cs kubernetes.Interface) factory {
	// Upstream's own: its Pod informer selects status.phase!=Succeeded,status.phase!=Failed.
	return factory{shared, scheduler.NewInformerFactory(cs, 0, nil)}
}

// Core implements informers.SharedInformerFactory.
func (f factory) Core() core.Interface { return coreGroup{f.SharedInformerFactory.Core(), f.pods} }

// Start implements informers.SharedInformerFactory.
func (f factory) Start(stop <-chan struct{}) {
	f.pods.Start(stop)
	f.SharedInformerFactory.Start(stop)
}

// StartWithContext implements informers.SharedInformerFactory.
func (f factory) StartWithContext(ctx context.Context) { f.Start(ctx.Done()) }

type coreGroup struct {
	core.Interface
	pods informers.SharedInformerFactory
}

// V1 implements core.Interface.
func (g coreGroup) V1() corev1.Interface { return coreVersion{g.Interface.V1(), g.pods} }

type coreVersion struct {
	corev1.Interface
	pods informers.SharedInformerFactory
}

// Pods implements corev1.Interface.
func (v coreVersion) Pods() corev1.TypedPodInformer { return v.pods.Core().V1().Pods() }
