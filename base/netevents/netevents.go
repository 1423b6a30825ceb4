// Package netevents follows the kernel's events about links, addresses, routes and the packet filter.
package netevents

import (
	"context"
	"time"

	"kubelith.io/kubelith/base/reconcile"
)

// retry is the time between two subscriptions.
const retry = time.Second

// Follow calls each with the events of a netlink subscription, such as netlink.AddrSubscribe, until ctx ends. When the
// kernel ends a subscription, because its reader is slow, Follow subscribes again; when it cannot subscribe, it tries
// again every second. It calls began after each subscription, since earlier events were missed.
func Follow[T any](ctx context.Context, subscribe func(chan<- T, <-chan struct{}) error, began func(), each func(T)) {
	for ctx.Err() == nil {
		follow(ctx, subscribe, began, each)
		reconcile.Sleep(ctx, retry)
	}
}

// follow reads one subscription until it ends.
func follow[T any](ctx context.Context, subscribe func(chan<- T, <-chan struct{}) error, began func(), each func(T)) {
	events, done := make(chan T), make(chan struct{})
	if err := subscribe(events, done); err != nil {
		close(done)
		return
	}
	defer func() {
		close(done)
		for range events { // until its reader is gone
		}
	}()
	began()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			each(e)
		}
	}
}
