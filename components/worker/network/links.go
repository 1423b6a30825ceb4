package network

import (
	"context"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kubelith.io/kubelith/base/names"
)

// watchLinks signals changes of our devices, or of the interface below them, until ctx ends; the returned function
// waits for that. Without the events the loop notices the changes itself, later.
func (s *Server) watchLinks(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	running.Go(func() {
		defer utilruntime.HandleCrash()
		for ctx.Err() == nil {
			s.readLinks(ctx)
			select { // the kernel ends a slow subscription
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return running.Wait
}

// readLinks reads the events of one subscription until it ends.
func (s *Server) readLinks(ctx context.Context) {
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		close(done)
		return
	}
	defer func() {
		close(done)
		for range updates { // until its reader is gone
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case u, ok := <-updates:
			if !ok {
				return
			}
			// Pods' interfaces come and go all the time.
			if a := u.Attrs(); a.Name == device4() || a.Name == device6() || a.Name == names.WireGuardLink || a.Index == int(s.parent.Load()) {
				s.changed.Send()
			}
		}
	}
}
