package servers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	etcdmembership "go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// ResetOptions are of a server that does not run.
type ResetOptions struct {
	// NodeName is this server's, and DataDir its data directory.
	NodeName, DataDir string
	// Socket is where its etcd serves clients meanwhile.
	Socket string
	// Peer is how others reached it, and will.
	Peer etcd.Peer
	// Forced: others that answer with a majority are not asked.
	Forced bool
}

// Reset makes a server, which must not run, the only member of its cluster, with the data that it has. Unless it is
// forced, it refuses while one of the others answers with a majority.
func Reset(ctx context.Context, o ResetOptions) error {
	all, err := members(o.etcdDir())
	if err != nil && !o.Forced {
		return fmt.Errorf("cannot read the addresses of the other servers (%w): restore %s from a backup, or a snapshot", err, o.etcdDir())
	}
	if !hasVote(all, o.NodeName) {
		return errors.New("nothing is reset: this server was joining and has no vote yet, and perhaps not all data: " +
			"run kubelith server --cluster-reset on a server that had one, or restore a snapshot")
	}
	if !o.Forced {
		if err := refuseIfAlive(ctx, o.Peer, others(all, o.NodeName)); err != nil {
			return err
		}
	}
	err = etcd.With(ctx, etcd.Options{
		Name: o.NodeName, DataDir: o.etcdDir(), Socket: o.Socket, Peer: &o.Peer, Reset: true, Zap: zap.NewNop(),
	}, func(c *clientv3.Client) error {
		// What others would wait for: the address of each API, and the leader.
		_, err := c.Txn(ctx).Then(
			clientv3.OpDelete("/registry/masterleases/", clientv3.WithPrefix()),
			clientv3.OpDelete("/registry/leases/kube-system/"+names.Lease),
		).Commit()
		return err
	})
	if err != nil {
		return fmt.Errorf("make this server the only one: %w", err)
	}
	return Update(o.DataDir, func(m *Membership) { m.PeerURL, m.Servers = o.Peer.URL, nil })
}

func (o ResetOptions) etcdDir() string { return filepath.Join(o.DataDir, datadir.Etcd) }

// hasVote reports whether this server is more than a learner. etcd cannot remove all members that have a vote: it
// panics after it has written that to its log. A member has no name until it has started.
func hasVote(all []*etcdmembership.Member, self string) bool {
	nameless := false
	for _, m := range all {
		if m.Name == self {
			return !m.IsLearner
		}
		nameless = nameless || m.Name == "" && m.IsLearner
	}
	return !nameless
}

// refuseIfAlive returns an error if one of the other members answers with a majority.
func refuseIfAlive(ctx context.Context, peer etcd.Peer, others []*etcdmembership.Member) error {
	ask, err := askPeer(peer)
	if err != nil {
		return err
	}
	alive := withMajority(ctx, others, ask)
	if alive == nil {
		return nil
	}
	return fmt.Errorf("nothing is reset: server %s (%s) answers and has a majority: "+
		"start this server without --cluster-reset to let it catch up; "+
		"if its data is unusable, run kubelith reset --data and join again with a token; "+
		"--cluster-reset-force resets anyway",
		cmp.Or(alive.Name, "that joins"), alive.PeerURLs[0])
}

// others returns those of the members that have another name and an address.
func others(all []*etcdmembership.Member, self string) []*etcdmembership.Member {
	return slices.DeleteFunc(slices.Clone(all), func(m *etcdmembership.Member) bool { return m.Name == self || len(m.PeerURLs) == 0 })
}

// members returns the members in the directory of an etcd, which does not run.
func members(dir string) (all []*etcdmembership.Member, err error) {
	err = etcd.ReadDatabase(etcd.DatabaseFile(dir), func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte(membersBucket))
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(_, v []byte) error {
			m := &etcdmembership.Member{}
			if err := json.Unmarshal(v, m); err != nil {
				return err
			}
			all = append(all, m)
			return nil
		})
	})
	return all, err
}

// membersBucket is where etcd keeps its members, in JSON. Source: etcd/server/storage/schema/bucket.go.
const membersBucket = "members"

// askPeersFor bounds the questions to other members. One without a leader waits for that, up to seven seconds.
const askPeersFor = 10 * time.Second

// withMajority returns the first of the members that answers with a majority; nil if there is none.
func withMajority(
	ctx context.Context, members []*etcdmembership.Member, ask func(ctx context.Context, url string) error,
) *etcdmembership.Member {
	ctx, cancel := context.WithTimeout(ctx, askPeersFor)
	defer cancel()
	var once sync.Once
	var found *etcdmembership.Member
	var all sync.WaitGroup
	for _, m := range members {
		all.Go(func() {
			if ask(ctx, m.PeerURLs[0]) == nil {
				once.Do(func() { found = m })
				cancel() // the others need not answer any more
			}
		})
	}
	all.Wait()
	return found
}

// askPeer returns a question to another member: it fails unless that has a leader and a majority. The path is the one
// of etcd's between members that is answered by a linearizable read.
func askPeer(peer etcd.Peer) (func(ctx context.Context, url string) error, error) {
	trust, err := transport.TLSInfo{CertFile: peer.Cert, KeyFile: peer.Key, TrustedCAFile: peer.CA}.ClientConfig()
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}}
	return func(ctx context.Context, url string) error {
		return Ask(ctx, &client, url+etcdserver.DowngradeEnabledPath)
	}, nil
}
