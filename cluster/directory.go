package cluster

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// prefix is that of the directories of all clusters.
	prefix = "kubelith-"
	// longestDir, in bytes, is that of a directory whose unix sockets have names of at most 107 bytes (unix(7)). The
	// run directory in it may have 29.
	longestDir = 29 - len("/run")
	// randomDigits is the most that os.MkdirTemp adds.
	randomDigits = 10
	// lockName is a file in the directory of a cluster, and in no other, that is locked while the cluster is in use.
	lockName = "cluster-of-a-go-test"
)

// directory holds everything of a cluster.
type directory struct {
	base string
	log  string
	lock *os.File
}

// newDirectory creates one in TMPDIR if that path is short enough, else in /tmp. It also removes those of clusters
// whose test binary was killed.
func newDirectory(name string) (*directory, error) {
	parent := os.TempDir()
	if len(filepath.Join(parent, prefix))+randomDigits > longestDir {
		parent = "/tmp"
	}
	sweep(parent)
	for {
		base, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, fmt.Errorf("create a directory for the cluster: %w", err)
		}
		lock, err := tryLock(base, os.O_CREATE)
		if errors.Is(err, errInUse) { // another process's sweep was as quick, and removes it
			continue
		}
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(base))
		}
		d := &directory{base: base, lock: lock}
		if d.log, err = d.logFile(name); err != nil {
			return nil, errors.Join(err, d.remove())
		}
		return d, nil
	}
}

// path returns the path of a file in the directory.
func (d *directory) path(name string) string { return filepath.Join(d.base, name) }

// logFile returns where the server's log goes.
func (d *directory) logFile(name string) (string, error) {
	kept := os.Getenv("KUBELITH_TEST_LOGS")
	if kept == "" {
		return d.path("server.log"), nil
	}
	kept, err := filepath.Abs(kept)
	if err == nil {
		err = os.MkdirAll(kept, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("KUBELITH_TEST_LOGS: %w", err)
	}
	name = strings.NewReplacer("/", "-", " ", "-").Replace(name)
	return filepath.Join(kept, name+"-"+strings.TrimPrefix(filepath.Base(d.base), prefix)+".log"), nil
}

func (d *directory) remove() error {
	err := os.RemoveAll(d.base)
	d.lock.Close()
	return err
}

// sweep removes the directories of this user's clusters that are not in use.
func sweep(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !ours(info) {
			continue
		}
		if lock, err := tryLock(dir, 0); err == nil {
			os.RemoveAll(dir) // what cannot be removed now is the next sweep's
			lock.Close()
		}
	}
}

func ours(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

var errInUse = errors.New("the directory is in use")

// tryLock locks a directory's lock file, which the kernel unlocks when all processes that have it open have ended: the
// test binary and the server.
func tryLock(dir string, create int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|create, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, errInUse
	}
	if _, err := os.Stat(f.Name()); create != 0 && err != nil { // swept between the two
		f.Close()
		return nil, errInUse
	}
	return f, nil
}

// randomLoopback returns an address of 127.0.0.0/8 that programs do not use by default.
func randomLoopback() string {
	var b [3]byte
	rand.Read(b[:]) // never fails
	return net.IPv4(127, 1+b[0]%254, b[1], 1+b[2]%254).String()
}
