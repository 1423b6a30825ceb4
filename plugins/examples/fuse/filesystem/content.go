package filesystem

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// opened counts that a file was opened, or with a negative number closed.
func (f *FS) opened(n *node, by int) (left int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.opens = max(0, n.opens+by)
	return n.opens
}

// isOpen reports whether a program may have the file open.
func (f *FS) isOpen(n *node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return n.opens > 0 || n.old
}

// Open implements fuse.RawFileSystem.
func (f *FS) Open(_ <-chan struct{}, in *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	f.tree.RLock()
	defer f.tree.RUnlock()
	ctx, cancel := request()
	defer cancel()
	n, err := f.node(in.NodeId)
	if err != nil {
		return f.status(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := f.refresh(ctx, n); err != nil {
		return f.status(err)
	}
	if in.Flags&syscall.O_TRUNC != 0 {
		if err := f.resize(ctx, n, 0); err != nil {
			return f.status(err)
		}
	}
	f.opened(n, 1)
	return fuse.OK
}

// Read implements fuse.RawFileSystem.
func (f *FS) Read(_ <-chan struct{}, in *fuse.ReadIn, p []byte) (fuse.ReadResult, fuse.Status) {
	f.tree.RLock()
	defer f.tree.RUnlock()
	ctx, cancel := request()
	defer cancel()
	n, err := f.node(in.NodeId)
	if err != nil {
		return nil, f.status(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := f.refresh(ctx, n); err != nil {
		return nil, f.status(err)
	}
	b, err := f.fetch(ctx, n, int64(in.Offset), int64(in.Size))
	if err != nil {
		return nil, f.status(err)
	}
	p = p[:min(int64(len(p)), max(0, b.size-int64(in.Offset)))]
	if _, err := b.file.ReadAt(p, int64(in.Offset)); err != nil {
		return nil, f.status(err)
	}
	return fuse.ReadResultData(p), fuse.OK
}

// Write implements fuse.RawFileSystem. It writes into the buffer.
func (f *FS) Write(_ <-chan struct{}, in *fuse.WriteIn, p []byte) (uint32, fuse.Status) {
	f.tree.RLock()
	defer f.tree.RUnlock()
	ctx, cancel := request()
	defer cancel()
	n, err := f.node(in.NodeId)
	if err != nil {
		return 0, f.status(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := f.refresh(ctx, n); err != nil {
		return 0, f.status(err)
	}
	b, err := f.change(ctx, n, -1)
	if err != nil {
		return 0, f.status(err)
	}
	end := int64(in.Offset) + int64(len(p))
	growth := max(0, end-b.size)
	if err := f.grow(growth, 0); err != nil {
		return 0, f.status(err)
	}
	if _, err := b.file.WriteAt(p, int64(in.Offset)); err != nil {
		f.grow(-growth, 0)
		return 0, f.status(err)
	}
	b.size, b.meta.Time = b.size+growth, time.Now()
	return uint32(len(p)), fuse.OK
}

// Flush implements fuse.RawFileSystem. Each close of a file calls it.
func (f *FS) Flush(_ <-chan struct{}, in *fuse.FlushIn) fuse.Status { return f.sync(in.NodeId) }

// Fsync implements fuse.RawFileSystem.
func (f *FS) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return f.sync(in.NodeId) }

// FsyncDir implements fuse.RawFileSystem. Names are in the store at once.
func (f *FS) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

func (f *FS) sync(id uint64) fuse.Status {
	f.tree.RLock()
	defer f.tree.RUnlock()
	n, err := f.node(id)
	if err != nil {
		return f.status(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return f.status(f.upload(context.Background(), n))
}

// Release implements fuse.RawFileSystem. A buffer that is not uploaded, because the store was away, stays.
func (f *FS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	f.tree.RLock()
	defer f.tree.RUnlock()
	n, err := f.node(in.NodeId)
	if err != nil || f.opened(n, -1) > 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.buf != nil && !n.buf.dirty && !n.old {
		f.drop(n)
	}
}

// OpenDir implements fuse.RawFileSystem.
func (f *FS) OpenDir(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	out.Fh = uint64(time.Now().UnixNano()) // unique, also among processes
	for f.listings[out.Fh] != nil {
		out.Fh++
	}
	f.listings[out.Fh] = []fuse.DirEntry{}
	return fuse.OK
}

// ReleaseDir implements fuse.RawFileSystem.
func (f *FS) ReleaseDir(in *fuse.ReleaseIn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.listings, in.Fh)
}

// ReadDir implements fuse.RawFileSystem. A directory is listed at its beginning, and again where another process has
// listed it.
func (f *FS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f.tree.RLock()
	defer f.tree.RUnlock()
	f.mu.Lock()
	list := f.listings[in.Fh]
	f.mu.Unlock()
	if in.Offset == 0 || len(list) == 0 {
		var err error
		if list, err = f.list(in.NodeId); err != nil {
			return f.status(err)
		}
		f.mu.Lock()
		f.listings[in.Fh] = list
		f.mu.Unlock()
	}
	for i := int(in.Offset); i < len(list); i++ {
		if !out.AddDirEntry(list[i]) {
			break
		}
	}
	return fuse.OK
}

func (f *FS) list(id uint64) ([]fuse.DirEntry, error) {
	n, err := f.node(id)
	if err != nil {
		return nil, err
	}
	key, gone := f.key(n)
	list := []fuse.DirEntry{{Name: ".", Mode: fuse.S_IFDIR, Off: 1}, {Name: "..", Mode: fuse.S_IFDIR, Off: 2}}
	if gone {
		return list, nil
	}
	ctx, cancel := request()
	defer cancel()
	modes := map[string]uint32{}
	for _, name := range f.local(n) {
		modes[name] = fuse.S_IFREG
	}
	if err := f.o.Store.List(ctx, key, false, func(i store.Info) error {
		mode := uint32(fuse.S_IFREG)
		if i.Dir() {
			mode = fuse.S_IFDIR
		}
		if name := strings.TrimSuffix(strings.TrimPrefix(i.Key, key), "/"); name != "" && !strings.Contains(name, "/") {
			modes[name] = mode
		}
		return nil
	}); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(modes))
	for name := range modes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		list = append(list, fuse.DirEntry{Name: name, Mode: modes[name], Off: uint64(len(list) + 1)})
	}
	return list, nil
}
