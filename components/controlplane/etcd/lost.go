package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// A member passes writes on to the leader. If that dies, they are lost, and etcd waits for them for five seconds and
// two election timeouts (ReqTimeout, which has no setting). But once there is a new leader, what is not stored soon
// will not be.
//
//	write --> member --> leader, dies
//	            |        new leader: a linearizable read returns, and so everything that it has of the former is
//	            |        applied here
//	            +------- lostAfter: the same error as that of the timeout, also in what it leaves open: whether the
//	                     write was stored

// lostAfter is how long a write may take after that, as it may have waited for the new leader; and a few syncs of a
// slow disk longer.
const lostAfter = time.Second

// leadership is what a member knows of its leader: of an etcdserver.EtcdServer.
type leadership interface {
	LeaderChangedNotify() <-chan struct{}
	LinearizableReadNotify(context.Context) error
}

// errLost is the cause of the end of a write's context.
var errLost = errors.New("the leader to which the write was passed on is lost")

// unlessLost is a grpc.UnaryServerInterceptor that ends the writes of the API server that are lost.
func (s *Server) unlessLost(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	e := s.running.Load()
	if e == nil || info.FullMethod != "/etcdserverpb.KV/Txn" && info.FullMethod != "/etcdserverpb.Lease/LeaseGrant" {
		return handler(ctx, request)
	}
	return untilLost(ctx, e.Server, lostAfter+4*s.slowSync, func(ctx context.Context) (any, error) { return handler(ctx, request) })
}

// untilLost calls write, and ends its context when it is lost.
func untilLost(ctx context.Context, l leadership, after time.Duration, write func(context.Context) (any, error)) (any, error) {
	changed := l.LeaderChangedNotify()
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if l.LinearizableReadNotify(ctx) != nil { // that leader is gone, too
			return
		}
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
			cancel(errLost)
		}
	}()
	answer, err := write(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errLost) {
		err = rpctypes.ErrGRPCTimeoutDueToLeaderFail
	}
	cancel(nil)
	<-ended
	return answer, err
}
