package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	snapclientset "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	sharedinformers "kubelith.io/kubelith/base/informers"
)

const (
	// callTimeout bounds a call of a controller; the libraries make a call that took longer again.
	callTimeout = 30 * time.Second
	// retryMin and retryMax bound the time until a controller tries again. The sidecars' 5 minutes would be what an
	// operator waits who has fixed a driver. Its next process does not end the wait: a volume whose call ends the
	// process would keep it from all others.
	retryMin, retryMax = time.Second, time.Minute
	// workers is how many volumes a controller works on at a time.
	workers = 10
)

// Clients call the API.
type Clients struct {
	Client kubernetes.Interface
	// Snapshots reads VolumeSnapshots that a claim is created from.
	Snapshots snapclientset.Interface
}

// NewClients returns clients with this configuration.
func NewClients(c *rest.Config) (Clients, error) {
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return Clients{}, fmt.Errorf("client: %w", err)
	}
	c = rest.CopyConfig(c)
	c.ContentConfig = rest.ContentConfig{} // a CRD has no protobuf
	snapshots, err := snapclientset.NewForConfig(c)
	if err != nil {
		return Clients{}, fmt.Errorf("client of snapshots: %w", err)
	}
	return Clients{client, snapshots}, nil
}

// Controllers are what sidecars run beside a driver in pods: for a node-local driver on each node, for another one in
// one place of the cluster. All fields are required.
type Controllers struct {
	// Clients have the rights of the sidecars.
	Clients
	// Informers are shared with others. They are started if they do not run; what is started ends with Life.
	Informers informers.SharedInformerFactory
	Life      <-chan struct{}
	// NodeName is this node's.
	NodeName string
}

// controllers is what the controllers of a driver are built from.
type controllers struct {
	*Driver
	Controllers
	facts Facts
	view  *sharedinformers.View

	synced []cache.DoneChecker
	runs   []func(context.Context)
	ends   []func() // of what does not end by itself with the runs
}

// Start starts the controllers of a driver. The returned function waits for the end, after ctx has ended; nothing is
// left then.
func (o Controllers) Start(ctx context.Context, d *Driver, now Facts) (wait func(), err error) {
	view := sharedinformers.NewView(o.Informers)
	c := &controllers{Driver: d, Controllers: o, facts: now, view: view}
	for _, add := range []func(context.Context) error{c.addProvisioning, c.addResizing, c.addAttaching} {
		if err = add(ctx); err != nil {
			break
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	if err != nil {
		cancel() // those that are made end in the usual way
	}
	if d.NodeLocal {
		c.run(c.followNode)
	}
	view.Start(o.Life) // our informers are for all drivers; shared ones end with the process
	var running sync.WaitGroup
	running.Go(func() {
		cache.WaitFor(ctx, "", c.synced...) // what is run after ctx has ended ends at once, and its queues with it
		for _, run := range c.runs {
			running.Go(func() {
				defer utilruntime.HandleCrash()
				run(ctx)
			})
		}
	})
	wait = func() {
		running.Wait()
		cancel()
		view.Close()
		for _, end := range c.ends {
			end()
		}
	}
	if err != nil {
		wait()
		return nil, err
	}
	return wait, nil
}

// followNode has the driver queried again when its Node is another one, or gone: what it owns is gone with it.
func (c *controllers) followNode(ctx context.Context) {
	own := sharedinformers.One(c.Client, "", c.NodeName)
	look := func(o any) {
		if node := o.(*corev1.Node); node.Name == c.NodeName && node.UID != c.facts.NodeUID {
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

// broadcasts adds a controller whose broadcaster of Events has to be ended.
func (c *controllers) broadcasts(controller any) {
	c.ends = append(c.ends, func() { shutDown(controller) })
}

// needs has everything wait for an informer that a library only reads.
func (c *controllers) needs(i cache.SharedIndexInformer) {
	c.synced = append(c.synced, i.HasSyncedChecker())
}

func backoff() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)
}

// queue returns one that ends with the controllers, whoever uses it.
func (c *controllers) queue(name string) workqueue.TypedRateLimitingInterface[string] {
	q := workqueue.NewTypedRateLimitingQueueWithConfig(backoff(), workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
	c.ends = append(c.ends, q.ShutDown)
	return q
}
