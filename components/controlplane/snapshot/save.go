package snapshot

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// Source is a server whose cluster is saved.
type Source struct {
	// DataDir is its data directory, Socket that of its etcd, which runs.
	DataDir, Socket string
	// ConfigFile is its configuration, which need not exist.
	ConfigFile string
	Settings   datadir.Settings
	NodeIPs    []string
	// Kubelith and Kubernetes are the versions of this program.
	Kubelith, Kubernetes string
	// Keys encrypt the snapshot.
	Keys Keys
	// Progress, if it is not nil, gets how many bytes of a step are done.
	Progress func(step string, done, total int64)
}

// kept are the files and directories of the data directory that a snapshot has. The cluster's settings are in its
// header; the rest of the data directory is created again.
func kept() []string {
	return []string{"server/tls", "server/cred", "server/token", datadir.Manifests}
}

// Dir is the directory of a server's snapshots, unless another is set.
func Dir(dataDir string) string { return filepath.Join(dataDir, "server", "snapshots") }

// pluginDirs are the directories of executables of plugins.
func pluginDirs() []string { return []string{"admission", "scheduling", "storage"} }

// save writes a snapshot to w once the copy of the database is complete. scratch is a directory for that copy.
func save(ctx context.Context, s Source, to []age.Recipient, scratch string, w io.Writer) (Header, error) {
	keys, err := os.ReadFile(filepath.Join(s.DataDir, datadir.Encryption))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Header{}, err
	}
	database := filepath.Join(scratch, databaseEntry)
	copied, err := etcd.Copy(ctx, s.Socket, database)
	if err != nil {
		return Header{}, err
	}
	defer os.Remove(database)
	cluster, err := clusterOf(pki.Dir(s.DataDir))
	if err != nil {
		return Header{}, err
	}
	h := Header{
		Created:       time.Now().UTC().Truncate(time.Second),
		Kubelith:      s.Kubelith,
		Kubernetes:    s.Kubernetes,
		Etcd:          version.Version,
		Cluster:       cluster,
		Settings:      s.Settings,
		NodeIPs:       s.NodeIPs,
		Revision:      copied.Revision,
		DatabaseBytes: copied.Size,
		Encryption:    s.Keys.kind(),
	}
	if h.Plugins, err = pluginsOf(s.DataDir); err != nil {
		return h, err
	}
	out, err := newWriter(w, h, to)
	if err != nil {
		return h, err
	}
	if err := addFiles(out, s); err != nil {
		return h, err
	}
	// The keys of then decrypt what the database has; those of a rotation that went on meanwhile may not.
	if now, err := os.ReadFile(filepath.Join(s.DataDir, datadir.Encryption)); err == nil && !bytes.Equal(now, keys) {
		return h, errors.New("the key for Secrets was being replaced meanwhile (kubelith encryption status): save the snapshot again")
	}
	if s.Progress != nil {
		out.progress = func(done, total int64) { s.Progress(StepSave, done, total) }
	}
	if err := out.file(databaseEntry, database); err != nil {
		return h, err
	}
	return h, out.Close()
}

func addFiles(out *writer, s Source) error {
	if s.ConfigFile != "" {
		if err := out.file(configEntry, s.ConfigFile); err != nil {
			return err
		}
	}
	for _, top := range kept() {
		err := filepath.WalkDir(filepath.Join(s.DataDir, top), func(file string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if !e.Type().IsRegular() && e.Type()&fs.ModeSymlink == 0 { // a link to a manifest becomes the manifest
				return nil
			}
			if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
				return nil
			}
			name, err := filepath.Rel(s.DataDir, file)
			if err != nil {
				return err
			}
			return out.file(filesEntry+filepath.ToSlash(name), file)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func pluginsOf(dataDir string) ([]string, error) {
	var all []string
	for _, kind := range pluginDirs() {
		entries, err := os.ReadDir(filepath.Join(dataDir, "plugins", kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, path.Join(kind, e.Name()))
		}
	}
	return all, nil
}

// clusterOf returns Header.Cluster of a directory of keys and certificates. It fails if a CA lacks its key.
func clusterOf(tlsDir string) (string, error) {
	for _, ca := range []string{"front-proxy-ca", "kubelet-ca", "cluster-ca"} {
		pair, err := tls.LoadX509KeyPair(filepath.Join(tlsDir, ca+".crt"), filepath.Join(tlsDir, ca+".key"))
		if err != nil {
			return "", fmt.Errorf("the CA %s: %w", ca, err)
		}
		if ca == "cluster-ca" {
			return jointoken.SPKIHash(pair.Leaf), nil
		}
	}
	panic("unreachable")
}

// SaveFile saves a snapshot as a file of dir, which is created, and verifies it before it gets its name:
// NAME-NODE-TIME.snapshot.
func SaveFile(ctx context.Context, s Source, dir, name string) (File, error) {
	if err := checkName(name); err != nil {
		return File{}, err
	}
	to, err := s.Keys.recipients()
	if err != nil {
		return File{}, err
	}
	identities, err := Identities(s.Keys.PassphraseFile, "")
	if err != nil {
		return File{}, err
	}
	if len(s.Keys.Recipients) > 0 {
		// The private keys are elsewhere. A temporary one reads it back.
		own, err := age.GenerateX25519Identity()
		if err != nil {
			return File{}, err
		}
		to, identities = append(to, own.Recipient()), append(identities, own)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return File{}, err
	}
	if err := enoughSpace(s.DataDir, dir); err != nil {
		return File{}, err
	}
	if err := removeUnfinished(dir); err != nil {
		return File{}, err
	}
	scratch, err := os.MkdirTemp(dir, Unfinished)
	if err != nil {
		return File{}, err
	}
	defer os.RemoveAll(scratch)
	written := filepath.Join(scratch, "new")
	h, err := saveTo(ctx, s, to, scratch, written)
	if err != nil {
		return File{}, err
	}
	f, err := os.Open(written)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	if _, err := Verify(ctx, Measure(f, StepTest, info.Size(), s.Progress), identities, scratch); err != nil {
		return File{}, fmt.Errorf("the new snapshot cannot be restored: %w", err)
	}
	final := filepath.Join(dir, fmt.Sprintf("%s-%s-%s%s", name, s.Settings.NodeName, h.Created.Format("20060102T150405Z"), Suffix))
	if err := os.Rename(written, final); err != nil {
		return File{}, err
	}
	if err := atomicfile.SyncDir(dir); err != nil {
		return File{}, err
	}
	return fileOf(final)
}

func saveTo(ctx context.Context, s Source, to []age.Recipient, scratch, file string) (Header, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return Header{}, err
	}
	defer f.Close()
	h, err := save(ctx, s, to, scratch, f)
	if err != nil {
		return h, err
	}
	return h, f.Sync()
}

func checkName(name string) error {
	if name == "" || strings.ContainsAny(name, "/ \t\n") || strings.HasPrefix(name, ".") {
		return fmt.Errorf("%q cannot be the name of a snapshot: use letters, digits and dashes", name)
	}
	return nil
}

// enoughSpace refuses to fill a disk: the copy of the database, the snapshot, and the database restored to verify it.
func enoughSpace(dataDir, dir string) error {
	database, err := os.Stat(etcd.DatabaseFile(filepath.Join(dataDir, datadir.Etcd)))
	if err != nil {
		return fmt.Errorf("the data of etcd: %w", err)
	}
	free, err := freeIn(dir)
	if err != nil {
		return err
	}
	if want := uint64(4*database.Size() + 2*logBytes); free < want {
		return fmt.Errorf("%s has %d MiB free, and a snapshot and its test take up to %d: free space, or use another --snapshot-dir", dir, free>>20, want>>20)
	}
	return nil
}

// logBytes is the size of the log of a restored member.
const logBytes = 64 << 20

// enoughToUnpack refuses to fill a disk, or the memory behind it: the database as it is in the snapshot, and restored.
func enoughToUnpack(h Header, dir string) error {
	if h.DatabaseBytes < 0 || h.DatabaseBytes > math.MaxInt64/4 {
		return errDamaged
	}
	free, err := freeIn(dir)
	if err != nil {
		return err
	}
	if want := uint64(2*h.DatabaseBytes + logBytes); free < want {
		return fmt.Errorf("%s has %d MiB free, and the snapshot takes %d when it is unpacked: "+
			"free space there, or use another --snapshot-dir or, to restore, another --data-dir",
			filepath.Dir(dir), free>>20, want>>20)
	}
	return nil
}

// freeIn returns how many bytes may be written to the file system of a directory.
func freeIn(dir string) (uint64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return disk.Bavail * uint64(disk.Bsize), nil
}

// Verified is what a snapshot restores to.
type Verified struct {
	Header
	// Keys of etcd.
	Keys int64
}

// Verify restores a snapshot below scratch, where it leaves nothing, and starts etcd on it.
func Verify(ctx context.Context, r io.Reader, keys []age.Identity, scratch string) (Verified, error) {
	dir, err := os.MkdirTemp(scratch, Unfinished)
	if err != nil {
		return Verified{}, err
	}
	defer os.RemoveAll(dir)
	return unpackAndRestore(ctx, r, keys, dir, etcd.Options{Name: "snapshot", Socket: "/" + names.EtcdSocket}, steps{})
}

// steps are what a caller does in between; each may be nil.
type steps struct {
	accept func(Header) error                   // before anything is unpacked
	change func(Header, *clientv3.Client) error // the restored database
}

// unpackAndRestore unpacks a snapshot to dir, restores its database to dir/db for a member with these options, and
// returns what it has.
func unpackAndRestore(ctx context.Context, r io.Reader, keys []age.Identity, dir string, member etcd.Options, do steps) (Verified, error) {
	h, err := unpack(r, keys, dir, func(h Header) error {
		if do.accept != nil {
			if err := do.accept(h); err != nil {
				return err
			}
		}
		return enoughToUnpack(h, dir)
	})
	if err != nil {
		return Verified{Header: h}, err
	}
	v := Verified{Header: h}
	files := filepath.Join(dir, filesEntry)
	if cluster, err := clusterOf(pki.Dir(files)); err != nil || cluster != h.Cluster {
		return v, fmt.Errorf("%w: its keys are not those of its cluster", errDamaged)
	}
	member.DataDir, member.Zap = filepath.Join(dir, "db"), zap.NewNop()
	if err := etcd.Restore(filepath.Join(dir, databaseEntry), member); err != nil {
		return v, fmt.Errorf("%w: its database: %v", errDamaged, err)
	}
	if err := os.Remove(filepath.Join(dir, databaseEntry)); err != nil { // etcd has its own copy
		return v, err
	}
	run, err := os.MkdirTemp("", "kubelith-snapshot-") // short enough for a socket
	if err != nil {
		return v, err
	}
	defer os.RemoveAll(run)
	member.Socket = filepath.Join(run, names.EtcdSocket)
	err = etcd.With(ctx, member, func(c *clientv3.Client) error {
		if err := etcd.ClearAlarms(ctx, c); err != nil { // of the members that the cluster had
			return err
		}
		var revision int64
		var err error
		if v.Keys, revision, err = etcd.Keys(ctx, c); err != nil {
			return err
		}
		if revision != h.Revision || v.Keys == 0 {
			return fmt.Errorf("%w: %d keys at revision %d instead of %d", errDamaged, v.Keys, revision, h.Revision)
		}
		if do.change == nil {
			return nil
		}
		return do.change(h, c)
	})
	return v, err
}

// Unfinished begins the names of directories of snapshots that are being taken.
const Unfinished = ".Unfinished-"

// removeUnfinished removes what killed processes have left.
func removeUnfinished(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), Unfinished) && time.Since(info.ModTime()) > time.Hour {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
