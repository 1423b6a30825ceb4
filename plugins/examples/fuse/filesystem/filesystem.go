// Package filesystem makes the objects of a store a file system, with go-fuse.
//
// A file is an object. What a program writes goes into a buffer, a file of the node, and is uploaded when the program
// closes or syncs the file, and every half minute while it writes: an error of the store is an error of close. A buffer
// that could not be uploaded is kept, and tried again, until it is.
//
// The kernel knows files by numbers. The directory of the mount has a journal of them, and the buffers, so that another
// process can continue with the same connection to the kernel (package client) where this one was killed.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

const (
	// validFor is how long the kernel, and this package, cache the store's answers: another node may change files.
	validFor = time.Second
	// requestTimeout bounds what a program waits for a request of the store, apart from uploads.
	requestTimeout = 30 * time.Second
	// slowestUpload is the number of bytes in a second below which an upload fails.
	slowestUpload = 256 << 10
	// uploadEvery is how often buffers of open files are uploaded, and those that could not be are tried again.
	uploadEvery = 30 * time.Second
	// countEvery is how often the objects are counted: other nodes write too.
	countEvery = time.Minute
	// blockSize is that of statfs.
	blockSize = 4096
)

// Options of a file system. Store and Dir are required.
type Options struct {
	Store store.Store
	// Dir is a directory for buffers and the journal. It is the same for all processes that continue a mount.
	Dir string
	// Capacity in bytes; 0: no limit.
	Capacity int64
	// UID, GID and Umask are for objects that another program has written.
	UID, GID, Umask uint32
	// Log receives what an operator should know; may be nil.
	Log func(message string)
}

// FS is the file system. It is a fuse.RawFileSystem.
type FS struct {
	fuse.RawFileSystem // ENOSYS for the rest
	o                  Options
	journal            *os.File

	// tree is held for writing while names change in ways that change keys, and for reading by everything else.
	tree sync.RWMutex

	mu       sync.Mutex
	nodes    map[uint64]*node
	next     uint64
	capacity int64
	used     int64
	files    int64
	listings map[uint64][]fuse.DirEntry // of open directories
	said     string

	stop  context.CancelFunc
	ended sync.WaitGroup
}

// Open returns the file system of a mount, new or continued.
func Open(ctx context.Context, o Options) (*FS, error) {
	f := &FS{RawFileSystem: fuse.NewDefaultRawFileSystem(), o: o, capacity: o.Capacity,
		nodes: map[uint64]*node{}, listings: map[uint64][]fuse.DirEntry{}}
	if err := os.MkdirAll(filepath.Join(o.Dir, buffers), 0o700); err != nil {
		return nil, err
	}
	if err := f.load(); err != nil {
		return nil, fmt.Errorf("continue the mount: %w", err)
	}
	if err := f.count(ctx); err != nil {
		f.journal.Close()
		return nil, err
	}
	ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	f.ended.Go(func() { f.every(ctx, uploadEvery, f.Sync) })
	f.ended.Go(func() { f.every(ctx, countEvery, f.count) })
	return f, nil
}

// Close ends what runs in the background. Buffers stay.
func (f *FS) Close() error {
	f.stop()
	f.ended.Wait()
	return f.journal.Close()
}

func (f *FS) every(ctx context.Context, pause time.Duration, do func(context.Context) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			f.log(err)
		}
	}
}

// log an error, once as long as it is the same.
func (f *FS) log(err error) {
	f.mu.Lock()
	news := f.said != err.Error()
	f.said = err.Error()
	f.mu.Unlock()
	if news && f.o.Log != nil {
		f.o.Log(err.Error())
	}
}

// Sync uploads all buffers, and returns the first error.
func (f *FS) Sync(ctx context.Context) error {
	f.mu.Lock()
	all := make([]*node, 0, len(f.nodes))
	for _, n := range f.nodes {
		all = append(all, n)
	}
	f.mu.Unlock()
	var first error
	for _, n := range all {
		f.tree.RLock()
		n.mu.Lock()
		err := f.upload(ctx, n)
		n.mu.Unlock()
		f.tree.RUnlock()
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Busy reports whether a program has a file open, as far as this process knows.
func (f *FS) Busy() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		if n.opens > 0 {
			return true
		}
	}
	return false
}

// SetCapacity changes the capacity.
func (f *FS) SetCapacity(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = bytes
}

// count counts the objects.
func (f *FS) count(ctx context.Context) error {
	var used, files int64
	if err := f.o.Store.List(ctx, "", true, func(i store.Info) error {
		if !i.Dir() {
			used, files = used+i.Size, files+1
		}
		return nil
	}); err != nil {
		return fmt.Errorf("count the files: %w", err)
	}
	f.mu.Lock()
	all := make([]*node, 0, len(f.nodes))
	for _, n := range f.nodes {
		all = append(all, n)
	}
	f.mu.Unlock()
	for _, n := range all { // what is not uploaded yet
		n.mu.Lock()
		if n.buf != nil && n.buf.dirty {
			used += n.buf.size - n.info.Size
			if n.info.Tag == "" {
				files++
			}
		}
		n.mu.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used, f.files = used, files
	return nil
}

// grow takes space of the capacity, or gives some back.
func (f *FS) grow(bytes, files int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes > 0 && f.capacity > 0 && f.used+bytes > f.capacity {
		return syscall.ENOSPC
	}
	f.used, f.files = max(0, f.used+bytes), max(0, f.files+files)
	return nil
}

// StatFs implements fuse.RawFileSystem.
func (f *FS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	capacity := f.capacity
	if capacity == 0 {
		capacity = f.used + 1<<50
	}
	free := uint64(max(0, capacity-f.used)) / blockSize
	const more = 1 << 30 // a store has no limit of files
	*out = fuse.StatfsOut{
		Bsize: blockSize, Frsize: blockSize, NameLen: 255,
		Blocks: uint64(capacity) / blockSize, Bfree: free, Bavail: free,
		Files: uint64(f.files) + more, Ffree: more,
	}
	return fuse.OK
}

// status returns an error as a program gets it. What only the operator understands is logged.
func (f *FS) status(err error) fuse.Status {
	var errno syscall.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.Is(err, store.ErrNotExist):
		return fuse.ENOENT
	case errors.Is(err, store.ErrFull):
		f.log(err)
		return fuse.Status(syscall.ENOSPC)
	case errors.As(err, &errno) && (errno == syscall.ENOSPC || errno == syscall.EDQUOT || errno == syscall.ENOTEMPTY || errno == syscall.EEXIST ||
		errno == syscall.EINVAL || errno == syscall.EISDIR || errno == syscall.ENOTDIR || errno == syscall.EFBIG || errno == syscall.ENAMETOOLONG):
		return fuse.Status(errno)
	}
	f.log(err)
	return fuse.EIO
}

func request() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), requestTimeout)
}
