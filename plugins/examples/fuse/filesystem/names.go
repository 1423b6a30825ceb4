package filesystem

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// Lookup implements fuse.RawFileSystem.
func (f *FS) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	f.tree.RLock()
	defer f.tree.RUnlock()
	ctx, cancel := request()
	defer cancel()
	parent, err := f.node(h.NodeId)
	if err != nil {
		return f.status(err)
	}
	n, err := f.find(ctx, parent, name)
	if err != nil {
		return f.status(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	f.entry(n, out)
	return fuse.OK
}

// find returns an entry of a directory, and counts that the kernel knows it.
func (f *FS) find(ctx context.Context, parent *node, name string) (*node, error) {
	key, err := f.keyIn(parent, name)
	if err != nil {
		return nil, err
	}
	if n := f.kid(parent, name); n != nil {
		n.mu.Lock()
		here := n.buf != nil && n.buf.dirty
		n.mu.Unlock()
		if here {
			return f.know(parent, name, false), nil
		}
	}
	i, err := f.stat(ctx, key)
	if errors.Is(err, store.ErrNotExist) {
		if n := f.kid(parent, name); n != nil {
			f.lose(n) // another node has deleted it
		}
	}
	if err != nil {
		return nil, err
	}
	n := f.know(parent, name, i.Dir())
	n.mu.Lock()
	defer n.mu.Unlock()
	f.learn(n, i)
	return n, nil
}

// stat returns the file or the directory of a name.
func (f *FS) stat(ctx context.Context, key string) (store.Info, error) {
	i, err := f.o.Store.Stat(ctx, key)
	if errors.Is(err, store.ErrNotExist) {
		i, err = f.o.Store.Stat(ctx, key+"/")
	}
	return i, err
}

// GetAttr implements fuse.RawFileSystem.
func (f *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
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
	f.attr(n, &out.Attr)
	out.SetTimeout(validFor)
	return fuse.OK
}

// SetAttr implements fuse.RawFileSystem.
func (f *FS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
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
	if err = f.refresh(ctx, n); err == nil {
		err = f.setAttr(ctx, n, in)
	}
	if err != nil {
		return f.status(err)
	}
	f.attr(n, &out.Attr)
	out.SetTimeout(validFor)
	return fuse.OK
}

func (f *FS) setAttr(ctx context.Context, n *node, in *fuse.SetAttrIn) error {
	if size, ok := in.GetSize(); ok {
		if n.dir {
			return syscall.EISDIR
		}
		if err := f.resize(ctx, n, int64(size)); err != nil {
			return err
		}
	}
	m := f.meta(n)
	before := m
	if mode, ok := in.GetMode(); ok {
		m.Mode = mode & 0o7777
	}
	if uid, ok := in.GetUID(); ok {
		m.UID = uid
	}
	if gid, ok := in.GetGID(); ok {
		m.GID = gid
	}
	if at, ok := in.GetMTime(); ok {
		m.Time = at
	}
	if n.buf != nil && n.buf.dirty {
		n.buf.meta = m
		if n.opens == 0 && !n.old {
			return f.upload(ctx, n) // no close will do it
		}
		return f.mark(n)
	}
	key, gone := f.key(n)
	if m == before || gone {
		return nil
	}
	i, err := f.changeMeta(ctx, n, key, m)
	if err != nil {
		return err
	}
	if n.buf != nil { // the content is the same
		n.info.Tag = i.Tag
	}
	f.learn(n, i)
	return nil
}

// changeMeta writes other metadata of an object, or of a directory, which may have had no object.
func (f *FS) changeMeta(ctx context.Context, n *node, key string, m store.Meta) (store.Info, error) {
	if n.dir {
		return f.o.Store.Put(ctx, key, nil, 0, m)
	}
	i, err := f.o.Store.Copy(ctx, key, key, m)
	i.Size = n.info.Size
	return i, err
}

// Mkdir implements fuse.RawFileSystem.
func (f *FS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	f.tree.RLock()
	defer f.tree.RUnlock()
	ctx, cancel := request()
	defer cancel()
	parent, err := f.node(in.NodeId)
	var key string
	if err == nil {
		key, err = f.keyIn(parent, name)
	}
	if err != nil {
		return f.status(err)
	}
	i, err := f.o.Store.Put(ctx, key+"/", nil, 0, created(in.Mode, in.Owner))
	if err != nil {
		return f.status(err)
	}
	n := f.know(parent, name, true)
	n.mu.Lock()
	defer n.mu.Unlock()
	f.learn(n, i)
	f.entry(n, out)
	return fuse.OK
}

func created(mode uint32, by fuse.Owner) store.Meta {
	return store.Meta{Known: true, Mode: mode & 0o7777, UID: by.Uid, GID: by.Gid, Time: time.Now()}
}

// Create implements fuse.RawFileSystem. The object is written when the file is closed.
func (f *FS) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	n, status := f.create(in.NodeId, name, created(in.Mode, in.Owner), true)
	if !status.Ok() {
		return status
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	f.entry(n, &out.EntryOut)
	return fuse.OK
}

// Mknod implements fuse.RawFileSystem, for files.
func (f *FS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if in.Mode&syscall.S_IFMT != syscall.S_IFREG && in.Mode&syscall.S_IFMT != 0 {
		return fuse.EPERM
	}
	n, status := f.create(in.NodeId, name, created(in.Mode, in.Owner), false)
	if !status.Ok() {
		return status
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, cancel := request()
	defer cancel()
	if err := f.upload(ctx, n); err != nil {
		return f.status(err)
	}
	f.entry(n, out)
	return fuse.OK
}

func (f *FS) create(in uint64, name string, meta store.Meta, open bool) (*node, fuse.Status) {
	f.tree.RLock()
	defer f.tree.RUnlock()
	parent, err := f.node(in)
	if err == nil {
		_, err = f.keyIn(parent, name)
	}
	if err == nil {
		err = f.grow(0, 1)
	}
	if err != nil {
		return nil, f.status(err)
	}
	n := f.know(parent, name, false)
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, cancel := request()
	defer cancel()
	if n.buf == nil || !n.buf.dirty {
		n.info = store.Info{Meta: meta}
	}
	b, err := f.change(ctx, n, 0)
	if err != nil {
		return nil, f.status(err)
	}
	b.meta = meta
	if err := f.mark(n); err != nil {
		return nil, f.status(err)
	}
	if open {
		f.opened(n, 1)
	}
	return n, fuse.OK
}

// Unlink implements fuse.RawFileSystem.
func (f *FS) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	f.tree.RLock()
	defer f.tree.RUnlock()
	ctx, cancel := request()
	defer cancel()
	parent, err := f.node(h.NodeId)
	if err == nil {
		err = f.unlink(ctx, parent, name)
	}
	return f.status(err)
}

func (f *FS) unlink(ctx context.Context, parent *node, name string) error {
	key, err := f.keyIn(parent, name)
	if err != nil {
		return err
	}
	n := f.kid(parent, name)
	if n == nil {
		i, err := f.o.Store.Stat(ctx, key)
		if err != nil {
			return err
		}
		if err := f.o.Store.Delete(ctx, key); err != nil {
			return err
		}
		return f.grow(-i.Size, -1)
	}
	if n.dir {
		return syscall.EISDIR
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if f.isOpen(n) { // a program that has it open still reads it
		if err := f.refresh(ctx, n); err == nil {
			if _, err := f.fetch(ctx, n, 0, n.info.Size); err != nil {
				return err
			}
		}
	}
	size := n.info.Size
	if n.buf != nil {
		size = n.buf.size
	}
	if err := f.o.Store.Delete(ctx, key); err != nil {
		return err
	}
	f.lose(n)
	if !f.isOpen(n) {
		f.drop(n)
	}
	return f.grow(-size, -1)
}

// Rmdir implements fuse.RawFileSystem.
func (f *FS) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	f.tree.RLock()
	defer f.tree.RUnlock()
	ctx, cancel := request()
	defer cancel()
	parent, err := f.node(h.NodeId)
	if err == nil {
		err = f.rmdir(ctx, parent, name)
	}
	return f.status(err)
}

func (f *FS) rmdir(ctx context.Context, parent *node, name string) error {
	key, err := f.keyIn(parent, name)
	if err != nil {
		return err
	}
	n := f.kid(parent, name)
	if n != nil && !n.dir {
		return syscall.ENOTDIR
	}
	if err := f.empty(ctx, n, key+"/"); err != nil {
		return err
	}
	if err := f.o.Store.Delete(ctx, key+"/"); err != nil {
		return err
	}
	if n != nil {
		f.lose(n)
	}
	return nil
}

// empty returns ENOTEMPTY if a directory has entries, here or in the store.
func (f *FS) empty(ctx context.Context, n *node, key string) error {
	if n != nil && len(f.local(n)) > 0 {
		return syscall.ENOTEMPTY
	}
	return f.o.Store.List(ctx, key, false, func(store.Info) error { return syscall.ENOTEMPTY })
}

// local returns the entries of a directory that the store does not have yet.
func (f *FS) local(dir *node) (names []string) {
	f.mu.Lock()
	kids := make(map[string]*node, len(dir.kids))
	for name, n := range dir.kids {
		kids[name] = n
	}
	f.mu.Unlock()
	for name, n := range kids {
		n.mu.Lock()
		if n.buf != nil && n.buf.dirty {
			names = append(names, name)
		}
		n.mu.Unlock()
	}
	slices.Sort(names)
	return names
}

// Rename implements fuse.RawFileSystem. The store has no such thing: objects are copied and deleted, one after the
// other.
func (f *FS) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if in.Flags&^unix.RENAME_NOREPLACE != 0 {
		return fuse.EINVAL
	}
	f.tree.Lock()
	defer f.tree.Unlock()
	parent, err := f.node(in.NodeId)
	if err != nil {
		return f.status(err)
	}
	target, err := f.node(in.Newdir)
	if err != nil {
		return f.status(err)
	}
	return f.status(f.rename(parent, target, from, to, in.Flags&unix.RENAME_NOREPLACE == 0))
}

func (f *FS) rename(parent, target *node, from, to string, replace bool) error {
	ctx, cancel := request()
	defer cancel()
	before := f.kid(parent, from)
	n, err := f.find(ctx, parent, from)
	if errors.Is(err, store.ErrNotExist) && before != nil && before.old {
		return f.renamed(ctx, before, target, to)
	}
	if err != nil {
		return err
	}
	f.Forget(n.id, 1) // find has counted a look-up that the kernel does not know of
	if err := f.makeRoom(ctx, n, target, to, replace); err != nil {
		return err
	}
	oldKey, _ := f.key(n)
	newKey, err := f.keyIn(target, to)
	if err != nil {
		return err
	}
	if n.dir {
		err = f.moveTree(n, oldKey, newKey+"/")
	} else {
		err = f.moveFile(n, oldKey, newKey)
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.detach(n)
	f.attach(n, target, to)
	f.note(n)
	return nil
}

// renamed notes the new place of a node that an earlier process has renamed, when it was killed before it could note
// that. The error is ErrNotExist if it has not.
func (f *FS) renamed(ctx context.Context, n, target *node, to string) error {
	key, err := f.keyIn(target, to)
	if err != nil {
		return err
	}
	if n.dir {
		key += "/"
	}
	if _, err := f.o.Store.Stat(ctx, key); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attach(n, target, to)
	f.note(n)
	return nil
}

// makeRoom deletes what a renamed entry replaces.
func (f *FS) makeRoom(ctx context.Context, n, target *node, to string, replace bool) error {
	other, err := f.find(ctx, target, to)
	if errors.Is(err, store.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f.Forget(other.id, 1)
	switch {
	case other == n:
		return nil
	case !replace:
		return syscall.EEXIST
	case other.dir && !n.dir:
		return syscall.EISDIR
	case !other.dir && n.dir:
		return syscall.ENOTDIR
	case other.dir:
		return f.rmdir(ctx, target, to)
	}
	// The new object replaces the old one; until then a program that reads it has the old one.
	other.mu.Lock()
	defer other.mu.Unlock()
	if f.isOpen(other) {
		if _, err := f.fetch(ctx, other, 0, other.info.Size); err != nil {
			return err
		}
	}
	size := other.info.Size
	if other.buf != nil {
		size = other.buf.size
	}
	f.lose(other)
	return f.grow(-size, -1)
}

func (f *FS) moveFile(n *node, from, to string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout+time.Duration(n.info.Size/slowestUpload)*time.Second)
	defer cancel()
	if err := f.upload(ctx, n); err != nil {
		return err
	}
	i, err := f.o.Store.Copy(ctx, from, to, f.meta(n))
	if err != nil {
		return err
	}
	if err := f.o.Store.Delete(ctx, from); err != nil {
		return err
	}
	i.Size = n.info.Size
	n.info, n.read = i, time.Now() // the buffer remains that of this content
	return nil
}

func (f *FS) moveTree(n *node, from, to string) error {
	if strings.HasPrefix(to, from) {
		return syscall.EINVAL
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for _, below := range f.below(n) {
		below.mu.Lock()
		err := f.upload(ctx, below)
		below.read = time.Time{}
		below.mu.Unlock()
		if err != nil {
			return err
		}
	}
	all := []string{from}
	if err := f.o.Store.List(ctx, from, true, func(i store.Info) error { all = append(all, i.Key); return nil }); err != nil {
		return err
	}
	slices.Sort(all) // directories before what is in them
	for _, key := range all {
		i, err := f.o.Store.Stat(ctx, key)
		if err != nil {
			return err
		}
		if !i.Known {
			i.Meta = f.meta(&node{dir: i.Dir(), info: i})
		}
		if i.Dir() {
			_, err = f.o.Store.Put(ctx, to+strings.TrimPrefix(key, from), nil, 0, i.Meta)
		} else {
			_, err = f.o.Store.Copy(ctx, key, to+strings.TrimPrefix(key, from), i.Meta)
		}
		if err != nil {
			return err
		}
	}
	slices.Reverse(all)
	for _, key := range all {
		if err := f.o.Store.Delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// below returns all known nodes of a tree.
func (f *FS) below(dir *node) (all []*node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	todo := []*node{dir}
	for len(todo) > 0 {
		n := todo[0]
		todo = todo[1:]
		for _, kid := range n.kids {
			todo = append(todo, kid)
			if !kid.dir {
				all = append(all, kid)
			}
		}
	}
	return all
}
