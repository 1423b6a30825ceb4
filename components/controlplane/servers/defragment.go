package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"kubelith.io/kubelith/base/sealed"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// A member does not answer while it is defragmented, so that one server at a time is:
//
//	etcd accepts writes    the one that has the lease defragLease; the leader begins ten minutes later than the others
//	it refuses them        nothing can be granted, and nothing is written anyway: each in its part of a minute or two

const (
	// defragTimeout bounds a defragmentation. It rewrites the database: some seconds for 4 GiB on a fast disk.
	defragTimeout = 10 * time.Minute
	// defragEvery is how often a server defragments while etcd accepts writes: a database that fills again so soon
	// uses the space.
	defragEvery = time.Hour
	// defragRetry is the time after a defragmentation that failed, as for lack of space on the disk: each try copies
	// the database, and nothing is answered meanwhile.
	defragRetry = 10 * time.Minute
	// leaderWaits is how long the leader leaves to the others to defragment first.
	leaderWaits = 10 * time.Minute
	// defragLease is the ID of etcd's lease that a server has while it defragments ("kubelith"), and defragLeaseTTL the
	// seconds until it ends when that server dies.
	defragLease, defragLeaseTTL = 0x6b7562656c697468, 60
	// turn is how long each server may begin to defragment while etcd refuses writes, before it is another one's turn.
	turn = 30 * time.Second
)

// errOtherDefragments means that a server has the lease: another one, or this one since an earlier request.
const errOtherDefragments = sealed.Refusal("a server is defragmenting its database: run this again in a minute")

// errDefragment means that etcd tried it in vain.
var errDefragment = errors.New("etcd cannot defragment its database: its disk needs as much free space as the database uses")

// mayDefragment reports whether it is this server's turn, as far as it is known without the lease.
func (k *space) mayDefragment(members []etcd.Member, refusesWrites bool, now time.Time) bool {
	switch {
	case refusesWrites:
		return hasTurn(members, now)
	case len(members) > 1 && leads(members) && now.Sub(k.tightSince) < leaderWaits:
		return false
	}
	return now.Sub(k.defragmented) >= defragEvery
}

// hasTurn reports whether it is this member's turn: one after the other has theirs, and the leader comes last.
func hasTurn(members []etcd.Member, now time.Time) bool {
	if len(members) == 0 {
		return false
	}
	order := slices.SortedFunc(slices.Values(members), func(a, b etcd.Member) int {
		if a.Leader != b.Leader {
			if a.Leader {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.ID, b.ID)
	})
	return order[now.Unix()/int64(turn.Seconds())%int64(len(order))].Self
}

// Defragment gives the file system what the database of this server does not use, as an administrator wishes. It goes
// on when the request ends, which is after a minute: etcd does.
func (s *Server) Defragment(ctx context.Context) error {
	return s.defragment(context.WithoutCancel(ctx))
}

// defragment has the lease meanwhile. A member that leads gives that to another one first.
func (s *Server) defragment(ctx context.Context) error {
	defer s.long.Begin("defragmenting etcd's database")()
	return s.use(ctx, defragTimeout, func(ctx context.Context, c *clientv3.Client) error {
		release, err := leaseDefrag(ctx, c)
		if err != nil {
			return err
		}
		defer release()
		s.handOver(ctx)
		if _, err := c.Defragment(ctx, etcd.Endpoint(s.opts.Socket)); err != nil {
			return fmt.Errorf("%w: %w", errDefragment, err)
		}
		return nil
	})
}

// leaseDefrag takes the lease, which etcd grants to one server at a time, and renews it until release or the end of
// ctx. While etcd refuses writes for lack of space there is none, and servers take turns.
func leaseDefrag(ctx context.Context, c *clientv3.Client) (release func(), err error) {
	grant, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	_, err = clientv3.RetryLeaseClient(c).LeaseGrant(grant, &pb.LeaseGrantRequest{ID: defragLease, TTL: defragLeaseTTL})
	err = rpctypes.Error(err)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseExist):
		return nil, errOtherDefragments
	case errors.Is(err, rpctypes.ErrNoSpace):
		return func() {}, nil
	case err != nil:
		return nil, err
	}
	_, err = c.KeepAlive(ctx, defragLease) // the client renews it, whether its answers are read or not
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
		defer cancel()
		_, _ = c.Revoke(ctx, defragLease) // or it ends by itself
	}, err
}

// handOver lets another server that answers lead, if this one does: never a witness, which would give it back.
func (s *Server) handOver(ctx context.Context) {
	members := s.opts.Etcd.Members()
	if !leads(members) {
		return
	}
	for _, m := range members {
		if m.Self || m.Learner || m.Witness || s.get(ctx, m, "/version") != nil { // which one that defragments does not answer
			continue
		}
		err := s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.MoveLeader(ctx, m.ID)
			return err
		})
		if err == nil {
			return
		}
	}
}
