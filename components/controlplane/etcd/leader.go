package etcd

import (
	"context"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// AwaitLeader waits until this member knows a leader, or ctx ends. It returns false if there is nothing to wait for:
// there is a leader, the member does not run, or the process stops.
func (s *Server) AwaitLeader(ctx context.Context) (waited bool) {
	e := s.running.Load()
	return e != nil && awaitLeader(ctx, e.Server, s.opts.Ending)
}

// member is what awaitLeader asks of an etcdserver.EtcdServer.
type member interface {
	Leader() types.ID
	LeaderChangedNotify() <-chan struct{}
	StoppingNotify() <-chan struct{}
}

func awaitLeader(ctx context.Context, m member, ending <-chan struct{}) (waited bool) {
	for {
		changed := m.LeaderChangedNotify()
		if m.Leader() != 0 {
			return waited
		}
		select {
		case <-changed:
			waited = true
		case <-m.StoppingNotify():
			return false
		case <-ending:
			return false
		case <-ctx.Done():
			return true
		}
	}
}
