package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	fetch "go.etcd.io/etcd/client/v3/snapshot"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"kubelith.io/kubelith/base/names"
)

// Copied is a file that Copy has written.
type Copied struct {
	// Size in bytes.
	Size int64
	// Revision is the last one of the store.
	Revision int64
}

// Copy writes the database of the running member with this socket to a new file, whose content ends with its own
// checksum.
func Copy(ctx context.Context, socket, file string) (Copied, error) {
	_, err := fetch.SaveWithVersion(ctx, zap.NewNop(), clientv3.Config{Endpoints: []string{Endpoint(socket)}, DialTimeout: answerTimeout}, file)
	if err != nil {
		return Copied{}, fmt.Errorf("copy etcd's database: %w", err)
	}
	status, err := snapshot.NewV3(zap.NewNop()).Status(file)
	if err != nil {
		return Copied{}, fmt.Errorf("read the copy of etcd's database: %w", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return Copied{}, err
	}
	return Copied{Size: info.Size(), Revision: status.Revision}, nil
}

// answerTimeout bounds the wait for a member that has just been started, or does not run.
const answerTimeout = 30 * time.Second

// maxAnswer is the size of the longest answer, in bytes.
const maxAnswer = math.MaxInt32

// revisionBump is how many revisions a restored cluster skips, as etcd's documentation advises: those that were given
// out after the snapshot. Otherwise a client that knows them would take new objects for old ones.
// Source: https://etcd.io/docs/v3.6/op-guide/recovery/#restoring-with-revision-bump.
const revisionBump = 1_000_000_000

// Restore creates the data directory of a new member, which must not exist, from the file of Copy. All revisions before
// are compacted: every client lists again. The member's cluster has an ID of its own: etcd computes that from the
// addresses of the first members and a token, which most clusters here share, and a member of the former cluster that
// is started again must not be taken for one of this.
func Restore(file string, o Options) error {
	s, err := New(o)
	if err != nil {
		return err
	}
	var peers []string
	for _, u := range s.cfg.AdvertisePeerUrls {
		peers = append(peers, u.String())
	}
	return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        file,
		Name:                o.Name,
		OutputDataDir:       o.DataDir,
		PeerURLs:            peers,
		InitialCluster:      s.cfg.InitialCluster,
		InitialClusterToken: rand.Text(),
		RevisionBump:        revisionBump,
		MarkCompacted:       true,
	})
}

// Renew creates the data directory of a new lone member, which must not exist, from that of one which does not run. It
// has the same data, at revisions that no client knows yet: see Restore. from may be written to.
func Renew(ctx context.Context, from string, o Options) error {
	file := from + ".copy"
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an interrupted run
		return err
	}
	defer os.Remove(file)
	run, err := os.MkdirTemp("", "kubelith-etcd-") // short enough for a socket
	if err != nil {
		return err
	}
	defer os.RemoveAll(run)
	former := Options{Name: o.Name, DataDir: from, Socket: filepath.Join(run, names.EtcdSocket), Zap: zap.NewNop()}
	err = With(ctx, former, func(*clientv3.Client) error {
		_, err := Copy(ctx, former.Socket, file)
		return err
	})
	if err != nil {
		return err
	}
	return Restore(file, o)
}

// With runs a member while do uses it.
func With(ctx context.Context, o Options, do func(*clientv3.Client) error) error {
	s, err := New(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() {}) }()
	select {
	case <-s.Answers():
	case err := <-ended:
		return errors.Join(err, ctx.Err())
	}
	c, err := Dial(o.Socket)
	if err == nil && o.Reset { // the alarms of the others would stay for ever
		err = ClearAlarms(ctx, c)
	}
	if err == nil {
		err = do(c)
	}
	if c != nil {
		err = errors.Join(err, c.Close())
	}
	cancel()
	return errors.Join(err, <-ended)
}

// Keys counts what a member holds. The revision is without those that Restore skips.
func Keys(ctx context.Context, c *clientv3.Client) (keys, revision int64, err error) {
	all, err := c.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		return 0, 0, err
	}
	return all.Count, all.Header.Revision - revisionBump, nil
}
