package network

import (
	"context"
	"sync"

	"github.com/vishvananda/netlink"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/netevents"
)

// watchLinks signals changes of our devices, or of the interface below them, until ctx ends; the returned function
// waits for that. Without the events the loop notices the changes itself, later.
func (s *Server) watchLinks(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	running.Go(func() {
		defer utilruntime.HandleCrash()
		netevents.Follow(ctx, netlink.LinkSubscribe, s.changed.Send, func(u netlink.LinkUpdate) {
			// Pods' interfaces come and go all the time.
			if a := u.Attrs(); a.Name == device4() || a.Name == device6() || a.Name == names.WireGuardLink || a.Index == int(s.parent.Load()) {
				s.changed.Send()
			}
		})
	})
	return running.Wait
}
