package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"filippo.io/age"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/version"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/filetree"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// Target is a machine on which a cluster is restored.
type Target struct {
	// DataDir must have no cluster.
	DataDir string
	// Socket is where etcd will listen, and NodeName the name of the server.
	Socket, NodeName string
	// ConfigFile gets the settings of the cluster if it does not exist.
	ConfigFile string
	// Kubelith and Kubernetes are the versions of this program.
	Kubelith, Kubernetes string
}

// Restored is the result of Restore.
type Restored struct {
	Verified
	// Kept are files of the data directory that existed, and stayed.
	Kept []string
	// ConfigWritten means that ConfigFile did not exist, and LeftOut are settings of the former machine that are not in
	// it.
	ConfigWritten bool
	LeftOut       []string
}

// Restore creates the data directory of a server from a snapshot. It checks everything before it changes anything; the
// server refuses a restore that was interrupted, which can be run again.
func Restore(ctx context.Context, r io.Reader, keys []age.Identity, t Target) (_ Restored, err error) {
	if err := mayRestore(t.DataDir); err != nil {
		return Restored{}, err
	}
	had := exists(filepath.Join(t.DataDir, "version"))
	dir, err := datadir.Open(t.DataDir, t.Kubelith)
	if err != nil {
		return Restored{}, err
	}
	placed := false
	defer func() {
		err = errors.Join(err, dir.Close())
		if err != nil && !had && !placed {
			for _, path := range datadir.Files(t.DataDir) {
				os.Remove(path)
			}
		}
	}()
	if err := takeBack(t.DataDir); err != nil {
		return Restored{}, err
	}
	if err := mayRestore(t.DataDir); err != nil { // again: another process may have had the lock
		return Restored{}, err
	}
	staging := filepath.Join(t.DataDir, datadir.Restoring)
	if err := os.MkdirAll(staging, 0o700); err != nil {
		return Restored{}, err
	}
	defer func() {
		if !placed {
			err = errors.Join(err, os.RemoveAll(staging))
		}
	}()

	var out Restored
	member := etcd.Options{Name: t.NodeName, Socket: t.Socket}
	out.Verified, err = unpackAndRestore(ctx, r, keys, staging, member, steps{
		accept: func(h Header) error {
			if err := fits(h, t); err != nil {
				return err
			}
			return enoughForEtcd(h, t.DataDir)
		},
		change: func(h Header, c *clientv3.Client) error { return forget(ctx, c, h.Settings.NodeName, t.NodeName) },
	})
	if err != nil {
		return out, err
	}
	placed = true
	if out.Kept, err = place(staging, t.DataDir); err != nil {
		return out, err
	}
	settings := out.Settings
	settings.NodeName = t.NodeName
	if err := dir.KeepSettings(settings); err != nil {
		return out, err
	}
	if t.ConfigFile != "" && !exists(t.ConfigFile) {
		text, err := os.ReadFile(filepath.Join(staging, configEntry))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return out, err
		}
		text, out.LeftOut, err = config.ForOtherMachine(text, config.ClusterNetworks{
			ClusterCIDR: settings.ClusterCIDR, ServiceCIDR: settings.ServiceCIDR, ClusterDomain: settings.ClusterDomain,
		})
		if err != nil {
			return out, fmt.Errorf("the configuration in the snapshot: %w", err)
		}
		if len(text) > 0 {
			if err := os.MkdirAll(filepath.Dir(t.ConfigFile), 0o755); err != nil {
				return out, err
			}
			if err := atomicfile.Write(t.ConfigFile, text); err != nil {
				return out, err
			}
			out.ConfigWritten = true
		}
	}
	if err := os.RemoveAll(staging); err != nil {
		return out, err
	}
	return out, atomicfile.SyncDir(filepath.Dir(staging))
}

// fits refuses a snapshot of another version: an API server reads what the minor release before it has stored, and its
// own.
func fits(h Header, t Target) error {
	theirs, err := version.ParseGeneric(h.Kubernetes)
	if err != nil {
		return errDamaged
	}
	ours, err := version.ParseGeneric(t.Kubernetes)
	if err != nil {
		return err
	}
	switch {
	case theirs.Major() != ours.Major(), theirs.Minor() > ours.Minor():
		return fmt.Errorf("it is from Kubernetes %s (Kubelith %s), and this is %s: restore it with that release",
			h.Kubernetes, h.Kubelith, t.Kubernetes)
	case theirs.Minor()+1 < ours.Minor():
		return fmt.Errorf("it is from Kubernetes %s (Kubelith %s), and %s reads data that is at most one minor release older: "+
			"restore it with that release, and upgrade", h.Kubernetes, h.Kubelith, t.Kubernetes)
	}
	return nil
}

// enoughForEtcd refuses to fill a disk of etcd's own. That of the data directory has room for a second database.
func enoughForEtcd(h Header, dataDir string) error {
	dir := filepath.Join(dataDir, datadir.Etcd)
	var own, shared unix.Stat_t
	if !exists(dir) || unix.Stat(dataDir, &shared) != nil || unix.Stat(dir, &own) == nil && own.Dev == shared.Dev {
		return nil
	}
	free, err := freeIn(dir)
	if err != nil {
		return err
	}
	if want := uint64(h.DatabaseBytes) + 2*logBytes; free < want {
		return fmt.Errorf("%s has %d MiB free, and the restored database takes %d: free space there", dir, free>>20, want>>20)
	}
	return nil
}

// mayRestore refuses a data directory that has a cluster.
func mayRestore(dir string) error {
	if exists(filepath.Join(dir, datadir.Restoring)) {
		return nil // of an interrupted restore
	}
	for _, name := range append(cluster(), "agent/pki") {
		if exists(filepath.Join(dir, name)) {
			return fmt.Errorf("data directory %s has a cluster (%s): use another --data-dir, or remove that cluster with kubelith reset --data", dir, name)
		}
	}
	return nil
}

// cluster are the names by which a data directory has a cluster, in the order in which a restore places them: without
// the last the server refuses to start.
func cluster() []string { return []string{"server/cred", "server/token", datadir.Member, "server/tls"} }

// takeBack removes what an interrupted restore has placed.
func takeBack(dir string) error {
	staging := filepath.Join(dir, datadir.Restoring)
	if !exists(staging) {
		return nil
	}
	for _, name := range cluster() {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(dir, datadir.SettingsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(staging)
}

// place moves what is in staging to the data directory. While staging exists, the restore is not complete.
func place(staging, dataDir string) (kept []string, err error) {
	if err := atomicfile.SyncDir(filepath.Dir(staging)); err != nil {
		return nil, err
	}
	files := filepath.Join(staging, filesEntry)
	if kept, err = placeManifests(files, dataDir); err != nil {
		return kept, err
	}
	for _, name := range cluster() {
		from, to := filepath.Join(files, name), filepath.Join(dataDir, name)
		if name == datadir.Member {
			err = filetree.Replace(to, filepath.Join(staging, "db", "member"))
		} else if err = os.Rename(from, to); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return kept, err
		}
	}
	return kept, atomicfile.SyncDir(filepath.Join(dataDir, "server"))
}

// placeManifests moves manifests. Those that an operator has put there stay.
func placeManifests(files, dataDir string) (kept []string, err error) {
	root := filepath.Join(files, datadir.Manifests)
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(files, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dataDir, name)
		if exists(to) {
			kept = append(kept, name)
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		return os.Rename(path, to)
	})
	return kept, err
}

// forget removes what would make others wait for the former server: the Lease with which it leads, its addresses of the
// API, and, where the server gets another name, its node.
func forget(ctx context.Context, c *clientv3.Client, former, now string) error {
	const registry = "/registry/"
	ops := []clientv3.Op{clientv3.OpDelete(registry+"masterleases/", clientv3.WithPrefix())}
	if former != now {
		for _, key := range []string{"leases/kube-system/" + names.Lease, "minions/" + former, "leases/kube-node-lease/" + former, "csinodes/" + former} {
			ops = append(ops, clientv3.OpDelete(registry+key))
		}
	}
	_, err := c.Txn(ctx).Then(ops...).Commit()
	return err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// String names the snapshot for users.
func (h Header) String() string {
	parts := []string{h.Created.Format("2006-01-02 15:04:05 MST"), "server " + h.Settings.NodeName}
	if len(h.NodeIPs) > 0 {
		parts = append(parts, "("+strings.Join(slices.Clone(h.NodeIPs), ", ")+")")
	}
	return strings.Join(append(parts, "Kubernetes "+h.Kubernetes, "Kubelith "+h.Kubelith), " ")
}
