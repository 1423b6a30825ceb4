package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	etcdmembership "go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/controlplane/servers"
)

// ResetCluster makes this server, which must not run, the only member of its cluster, with the data that it has. The
// others come back by themselves when they are started, with their data moved aside. Unless it is forced, it refuses
// while one of the others answers with a majority: what that has stored since would be moved aside, too.
func ResetCluster(ctx context.Context, cfg *config.Server, release string, forced bool, out io.Writer) error {
	stored, err := servers.Load(cfg.DataDir)
	if err != nil {
		return err
	}
	if cfg.Witness || stored != nil && stored.Witness {
		return errors.New("a witness cannot be the only member of a cluster, as it has no keys: run kubelith server --cluster-reset on a server")
	}
	if stored == nil {
		return fmt.Errorf("the server of %s has no others: start it without --cluster-reset", cfg.DataDir)
	}
	if !etcd.Begun(filepath.Join(cfg.DataDir, "server", "db")) || stored.Removed {
		return fmt.Errorf("%s has no data of the cluster: run kubelith server --cluster-reset on a server that has", cfg.DataDir)
	}
	if len(stored.Settings) > 0 {
		if err := adopt(cfg, stored.Settings); err != nil {
			return err
		}
	}
	if err := datadir.CheckSettings(cfg.DataDir, fixedSettings(cfg)); err != nil {
		return err
	}
	dir, err := datadir.Open(cfg.DataDir, release)
	if err != nil {
		return err
	}
	defer dir.Close()
	h := &machine{dir: dir}
	if err := h.credentials(cfg); err != nil {
		return err
	}
	peer := h.peer(cfg)
	if !forced {
		if err := refuseIfAlive(ctx, cfg, peer); err != nil {
			return err
		}
	}
	err = etcd.With(ctx, etcd.Options{
		Name: cfg.NodeName, DataDir: filepath.Join(cfg.DataDir, "server", "db"), Socket: cfg.EtcdSocket(), Peer: &peer, Reset: true, Zap: zap.NewNop(),
	}, func(c *clientv3.Client) error {
		// What others would wait for: the address of each API, and the leader.
		_, err := c.Txn(ctx).Then(clientv3.OpDelete("/registry/masterleases/", clientv3.WithPrefix()), clientv3.OpDelete("/registry/leases/kube-system/"+names.Lease)).Commit()
		return err
	})
	if err != nil {
		return fmt.Errorf("make this server the only one: %w", err)
	}
	err = servers.Update(cfg.DataDir, func(m *servers.Membership) {
		m.PeerURL, m.Servers = peerURL(cfg), nil
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "this server is the only one of its cluster: start it, then the others, which come back by themselves\n")
	return err
}

// refuseIfAlive returns an error if another member of this server's etcd, which does not run, answers with a majority.
func refuseIfAlive(ctx context.Context, cfg *config.Server, peer etcd.Peer) error {
	others, err := otherMembers(filepath.Join(cfg.DataDir, "server", "db"), cfg.NodeName)
	if err != nil {
		return fmt.Errorf("cannot read the addresses of the other servers (%w): restore %s from a backup, or a snapshot", err, filepath.Join(cfg.DataDir, "server", "db"))
	}
	ask, err := askPeer(peer)
	if err != nil {
		return err
	}
	alive := withMajority(ctx, others, ask)
	if alive == nil {
		return nil
	}
	return fmt.Errorf("nothing is reset: server %s (%s) answers and has a majority: start this server without --cluster-reset, and it catches up; if its data is unusable, run kubelith reset --data and join again with a token; --cluster-reset-force makes it the only server all the same",
		cmp.Or(alive.Name, "that joins"), alive.PeerURLs[0])
}

// otherMembers returns those of the members in the directory of an etcd, which does not run, that have another name and
// an address.
func otherMembers(dir, self string) (others []*etcdmembership.Member, err error) {
	// On a truncated file there is a panic instead of the end of the process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	db, err := bbolt.Open(filepath.Join(dir, "member", "snap", "db"), 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte(membersBucket))
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(_, v []byte) error {
			m := &etcdmembership.Member{}
			if err := json.Unmarshal(v, m); err != nil {
				return err
			}
			if m.Name != self && len(m.PeerURLs) > 0 {
				others = append(others, m)
			}
			return nil
		})
	})
	return others, err
}

// membersBucket is where etcd keeps its members, in JSON. Source: etcd/server/storage/schema/bucket.go.
const membersBucket = "members"

// askPeersFor bounds the questions to other members. One without a leader waits for that, up to seven seconds.
const askPeersFor = 10 * time.Second

// withMajority returns the first of the members that answers with a majority; nil if there is none.
func withMajority(ctx context.Context, members []*etcdmembership.Member, ask func(ctx context.Context, url string) error) *etcdmembership.Member {
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
		return servers.Ask(ctx, &client, url+etcdserver.DowngradeEnabledPath)
	}, nil
}
