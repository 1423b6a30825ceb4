package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/reconcile"
)

// deferrable returns upstream's checks that wait until an object is written. Admission may reject the write until pods
// run, and no pod runs before the apiserver is ready: after readyPatience it is ready without them.
func deferrable() []string {
	return []string{
		"autoregister-completion",                                // an APIService for each API group of this release
		"poststarthook/start-kubernetes-service-cidr-controller", // the ServiceCIDR kubernetes
	}
}

const (
	readyPatience = bootstrapPatience
	// remindEvery is how often the log names what is not ready yet.
	remindEvery = 30 * time.Second
)

// announceReady calls ready when awaitReady succeeds, and does nothing when ctx ends before.
func (s *Server) announceReady(ctx context.Context, cs kubernetes.Interface, ready func()) {
	if awaitReady(ctx, cs, 10*time.Millisecond, s.opts.Log) == nil {
		s.served.Store(true)
		ready()
	}
}

// awaitReady polls /readyz until it answers ok. It waits as long as that takes, on a slow disk for minutes, and returns
// early with an error only when ctx ends.
func awaitReady(ctx context.Context, cs kubernetes.Interface, every time.Duration, log logrus.FieldLogger) error {
	began, reminded := time.Now(), time.Now()
	for {
		err := readyz(ctx, cs)
		if err == nil {
			return nil
		}
		if time.Since(began) > readyPatience && readyz(ctx, cs, deferrable()...) == nil {
			log.Warnf("the API is served, but some objects are not written yet: %v", err)
			return nil
		}
		if time.Since(reminded) > remindEvery {
			reminded = time.Now()
			log.Warnf("not ready after %s: %v", time.Since(began).Round(time.Second), err)
		}
		if !reconcile.Sleep(ctx, every) {
			return ctx.Err()
		}
	}
}

// readyz sends one request, without some checks; its error names those that fail.
func readyz(ctx context.Context, cs kubernetes.Interface, without ...string) error {
	request := cs.Discovery().RESTClient().Get().AbsPath("/readyz")
	for _, check := range without {
		request.Param("exclude", check)
	}
	var status int
	body, err := request.Do(ctx).StatusCode(&status).Raw()
	if err == nil || status == http.StatusOK {
		return nil
	}
	var failing []string
	for line := range strings.Lines(string(body)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			failing = append(failing, name)
		}
	}
	if len(failing) == 0 {
		return fmt.Errorf("/readyz: %w", err)
	}
	return errors.New("/readyz fails in " + strings.Join(failing, ", "))
}

// ownInformers is the shared factory as upstream's /readyz check informer-sync sees it: without informers to wait for
// once the component is ready. The apiserver does not wait for informers that other components start later, and
// informers that have synced once stay synced.
type ownInformers struct {
	informers.SharedInformerFactory
	served *atomic.Bool
}

// WaitForCacheSync implements informers.SharedInformerFactory.
func (o ownInformers) WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool {
	if o.served.Load() {
		return nil
	}
	return o.SharedInformerFactory.WaitForCacheSync(stop)
}
