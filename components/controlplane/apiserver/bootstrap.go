package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/reconcile"
)

const (
	// bootstrapWrites is how many objects are written at a time: etcd syncs concurrent writes to disk together.
	bootstrapWrites = 32
	// bootstrapPatience is how long the start waits while the bootstrap makes no progress.
	bootstrapPatience = 15 * time.Second
	// bootstrapRetry is the time before the second try; it doubles up to bootstrapRetryMax.
	bootstrapRetry    = 20 * time.Millisecond
	bootstrapRetryMax = time.Minute
)

// addBootstrap adds the post-start hooks that create what must exist before other components can work: the objects that
// Kubelith needs (own.go) and, in the same pass, upstream's RBAC policy and priority classes (policy.go).
//
// Upstream's own hooks for these are left out, and the one for flow control runs within ours: each ends the process
// when it cannot write within some time. An admission webhook in a pod may be the cause, and without the apiserver no
// pod starts. Here a failed write waits: the API is served without it.
// Source: PostStartHook in pkg/registry/{rbac,scheduling,flowcontrol}/rest.
//
// hooks owns what they leave running.
func addBootstrap(c *genericapiserver.Config, shared informers.SharedInformerFactory, o *Options, rbac bool, hooks *lifecycle.Goroutines) error {
	c.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName, schedulingrest.PostStartHookName, flowcontrolrest.PostStartHookName)
	_, flowControl, err := flowcontrolrest.RESTStorageProvider{InformerFactory: shared}.PostStartHook()
	if err != nil {
		return err
	}
	wanted, log := wantedObjects(o, rbac), o.Log
	// Monitoring, and upstream's test of /healthz, know by these names that the objects exist.
	var written atomic.Bool
	stands := []string{schedulingrest.PostStartHookName}
	if rbac {
		stands = append(stands, rbacrest.PostStartHookName)
	}
	for _, name := range stands {
		c.AddHealthChecks(healthz.NamedCheck("poststarthook/"+name, func(*http.Request) error {
			if !written.Load() {
				return errors.New("not finished")
			}
			return nil
		}))
	}
	return errors.Join(
		c.AddPostStartHook("kubelith-bootstrap", func(hook genericapiserver.PostStartHookContext) error {
			cs, err := newClients(hook.LoopbackClientConfig)
			if err != nil {
				return err
			}
			b := &bootstrap{log: log, hooks: hooks, compare: func(ctx context.Context) ([]change, []error) { return compare(ctx, cs, wanted) }}
			b.start(hook)
			written.Store(true)
			return nil
		}),
		c.AddPostStartHook("kubelith-flow-control", patient(flowControl, log, hooks)))
}

// bootstrap creates and updates the wanted objects.
type bootstrap struct {
	// compare returns what has to be written now, and an error for each kind that could not be read.
	compare func(context.Context) ([]change, []error)
	log     logrus.FieldLogger
	hooks   *lifecycle.Goroutines
}

// start returns when every object is right, or when the rest must wait for others. It retries the rest in the
// background until ctx ends.
func (b *bootstrap) start(ctx context.Context) {
	settled := make(chan struct{})
	settle := sync.OnceFunc(func() { close(settled) })
	progress := reconcile.NewSignal()
	b.hooks.Go(func() {
		defer settle()
		b.keep(ctx, progress, settle)
	})
	for {
		select {
		case <-progress:
		case <-settled:
			return
		case <-ctx.Done():
			return
		case <-time.After(bootstrapPatience):
			b.log.Warnf("some objects that the cluster needs are missing, and no write succeeded for %s: "+
				"the start continues, retrying in the background", bootstrapPatience)
			return
		}
	}
}

// keep runs passes until nothing is left or ctx ends. progress receives every write, and settle is called when the rest
// must wait for others.
func (b *bootstrap) keep(ctx context.Context, progress reconcile.Signal, settle func()) {
	complained := false
	for retry := bootstrapRetry; ; retry = min(2*retry, bootstrapRetryMax) {
		failed := b.pass(ctx, progress)
		switch {
		case ctx.Err() != nil:
			return
		case len(failed) == 0:
			if complained {
				b.log.Info("all objects that the cluster needs are written")
			}
			return
		case namespacesMissing(failed) && retry < time.Second: // in a new cluster they are just being created
		default:
			settle()
			if retry >= time.Second || !complained {
				b.log.Warnf("cannot write %d of the objects that the cluster needs, retrying in %s: %v", len(failed), retry, failed[0])
			}
			complained = true
		}
		if !reconcile.Sleep(ctx, retry) {
			return
		}
	}
}

// pass reads what exists, writes what differs, and returns the failures: one error for each object, or for each kind
// that could not be read.
func (b *bootstrap) pass(ctx context.Context, progress reconcile.Signal) []error {
	changes, failed := b.compare(ctx)
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(bootstrapWrites)
	for _, c := range changes {
		group.Go(func() error {
			if err := c.write(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Errorf("%s %s: %w", c.verb, c.object, err))
				return nil
			}
			if c.verb != "create" {
				b.log.Infof("%sd %s, which differed from what this release needs", c.verb, c.object)
			}
			progress.Send()
			return nil
		})
	}
	_ = group.Wait() // the errors are in failed
	return failed
}

// namespacesMissing reports whether missing namespaces are the only failures.
func namespacesMissing(failed []error) bool {
	for _, err := range failed {
		if !apierrors.IsNotFound(err) {
			return false
		}
	}
	return true
}

// patient runs an upstream hook until it succeeds. The server waits for it only for a limited time.
func patient(upstream genericapiserver.PostStartHookFunc, log logrus.FieldLogger, hooks *lifecycle.Goroutines) genericapiserver.PostStartHookFunc {
	return func(hook genericapiserver.PostStartHookContext) error {
		done := make(chan struct{})
		hooks.Go(func() {
			defer close(done)
			for {
				err := upstream(hook)
				if err == nil || hook.Err() != nil {
					return
				}
				log.Warnf("retrying in %s: %v", bootstrapRetryMax, err)
				if !reconcile.Sleep(hook, bootstrapRetryMax) {
					return
				}
			}
		})
		select {
		case <-done:
		case <-time.After(bootstrapPatience):
			log.Warnf("the API's flow control is not set up after %s: the start continues with upstream's built-in levels", bootstrapPatience)
		case <-hook.Done():
		}
		return nil
	}
}
