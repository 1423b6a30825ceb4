package etcd

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A member without a majority lets each request wait for seven seconds (see lost.go). When the process stops, the
// components and the API server send several more, one after the other: their leases, their addresses. The majority
// does not come back within the time of a stop, so these fail at once, and the stop is orderly.

const (
	// leaderlessAfter is how long there must have been no leader: an election takes less.
	leaderlessAfter = 3 * time.Second
	leaderlessEvery = 100 * time.Millisecond
)

// errLeaderless ends the requests. With the code Unavailable etcd's client would repeat them.
var errLeaderless = status.Error(codes.Aborted, "this server stops, and etcd has no leader: too few servers answer")

// leaderless returns a context that ends with errLeaderless when, once ending is closed, there has been no leader for a
// while.
func leaderless(ctx context.Context, ending <-chan struct{}, hasLeader func() bool) context.Context {
	over, end := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		defer end(nil)
		select {
		case <-ctx.Done():
			return
		case <-ending:
		}
		ticker := time.NewTicker(leaderlessEvery)
		defer ticker.Stop()
		for last := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case now := <-ticker.C:
				if hasLeader() {
					last = now
				} else if now.Sub(last) >= leaderlessAfter {
					end(errLeaderless)
					return
				}
			}
		}
	}()
	return over
}

// unlessLeaderless is a grpc.UnaryServerInterceptor that ends the requests of a process that stops without a leader.
func (s *Server) unlessLeaderless(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	over := s.over.Load()
	if over == nil {
		return handler(ctx, request)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(*over, func() { cancel(context.Cause(*over)) })()
	answer, err := handler(ctx, request)
	if err != nil && errors.Is(context.Cause(ctx), errLeaderless) {
		err = errLeaderless
	}
	return answer, err
}
