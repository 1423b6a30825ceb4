package storage

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	sharedinformers "kubelith.io/kubelith/components/informers"
)

const (
	// callTimeout bounds a call of a controller; the libraries make a call that took longer again.
	callTimeout = 30 * time.Second
	// retryMin and retryMax bound the time until a controller tries again, as in the sidecars.
	retryMin, retryMax = time.Second, 5 * time.Minute
	// workers is how many volumes a controller works on at a time.
	workers = 10
)

// controllers is what the controllers of a driver are built from.
type controllers struct {
	*driver
	facts
	view *sharedinformers.View

	synced []cache.InformerSynced
	runs   []func(context.Context)
}

// control starts what sidecars would run beside the driver. The returned function waits for the end, after ctx has ended.
//
// The broadcasters of Events in the libraries end with the process only.
func (d *driver) control(ctx context.Context, now facts) (wait func(), err error) {
	if !d.declared.nodeLocal && !d.Central {
		return func() {}, nil // another node does
	}
	view := sharedinformers.NewView(d.factory(), nil)
	c := &controllers{driver: d, facts: now, view: view}
	for _, add := range []func(context.Context) error{c.addProvisioning, c.addResizing, c.addAttaching} {
		if err := add(ctx); err != nil {
			view.Close()
			return nil, err
		}
	}
	if d.declared.nodeLocal {
		c.run(c.followNode)
	}
	view.Start(d.life) // informers of our own are for all drivers; shared ones end with the process
	var running sync.WaitGroup
	running.Go(func() {
		if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
			return
		}
		for _, run := range c.runs {
			running.Go(func() {
				defer utilruntime.HandleCrash()
				run(ctx)
			})
		}
	})
	return func() {
		running.Wait()
		view.Close()
	}, nil
}

// followNode has the driver asked again when its Node is another one, or gone: what it owns is gone with it.
func (c *controllers) followNode(ctx context.Context) {
	own := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithTransform(sharedinformers.Trim),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.NodeName).String()
		}))
	look := func(o any) {
		if node := o.(*corev1.Node); node.Name == c.NodeName && node.UID != c.nodeUID {
			c.wake()
		}
	}
	own.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, o any) { look(o) }, // its deletion may have been missed
		DeleteFunc: func(any) { c.wake() },
	})
	own.Start(ctx.Done())
	<-ctx.Done()
	own.Shutdown()
}

// run adds something that runs until its context ends.
func (c *controllers) run(f func(context.Context)) { c.runs = append(c.runs, f) }

// needs has everything wait for an informer that a library only reads.
func (c *controllers) needs(i cache.SharedIndexInformer) { c.synced = append(c.synced, i.HasSynced) }

func backoff() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)
}

func queue(name string) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(backoff(), workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
}
