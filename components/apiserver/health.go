package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/components/client"
	"kubelith.io/kubelith/components/lifecycle"
)

// Health is the component that is ready when /readyz says ok to anybody, a moment after the apiserver is ready for the
// components of the process. Nothing needs it; a server that has said that it is ready has passed it.
type Health struct {
	// Client reaches the apiserver.
	Client *client.InProcess
}

var _ lifecycle.Component = Health{}

// Name implements lifecycle.Component.
func (Health) Name() string { return "readyz" }

// Needs implements lifecycle.Component.
func (Health) Needs() []string { return []string{"apiserver"} }

// Run implements lifecycle.Component.
func (h Health) Run(ctx context.Context, ready func()) error {
	if err := awaitReady(ctx, h.Client, 100*time.Millisecond); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

// readyTimeout bounds the wait for /readyz. A cold start takes about two
// seconds; a slow disk with many objects takes longer.
const readyTimeout = 3 * time.Minute

// awaitReady asks /readyz every so often, as the loopback identity, until it says ok but for the post-start hooks
// withoutHooks. It returns nil as well when ctx is cancelled.
func awaitReady(ctx context.Context, c *client.InProcess, every time.Duration, withoutHooks ...string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	cs, err := kubernetes.NewForConfig(c.Config(client.APIServer))
	if err != nil {
		return err
	}
	for {
		last := readyz(ctx, cs, withoutHooks)
		if last == nil {
			return nil
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			if context.Cause(ctx) == context.DeadlineExceeded {
				return fmt.Errorf("not ready after %s: look in the log for what is missing, and start again if the disk was slow: %w", readyTimeout, last)
			}
			return nil // asked to stop
		}
	}
}

// readyz asks once; its error is what is not ready.
func readyz(ctx context.Context, cs kubernetes.Interface, withoutHooks []string) error {
	request := cs.Discovery().RESTClient().Get().AbsPath("/readyz")
	for _, hook := range withoutHooks {
		request.Param("exclude", "poststarthook/"+hook)
	}
	var status int
	if err := request.Do(ctx).StatusCode(&status).Error(); err != nil && status != http.StatusOK {
		return fmt.Errorf("/readyz: %w", err)
	}
	return nil
}
