package filesystem

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// node is a file or directory that the kernel knows by its number.
type node struct {
	id  uint64
	dir bool

	// Guarded by FS.mu.
	parent  *node
	name    string
	kids    map[string]*node
	gone    bool // deleted, and possibly open
	lookups uint64
	opens   int
	old     bool // of an earlier process: how often it was looked up and opened is unknown

	mu   sync.Mutex // taken before FS.mu
	info store.Info
	read time.Time // when the store reported it
	buf  *buffer
}

// journalName and buffers are the journal and the directory of buffers in the directory of a mount.
const (
	journalName = "journal"
	buffers     = "buffers"
)

// record is a line of the journal: a node has this place; without a name it has none any more.
type record struct {
	ID     uint64 `json:"i"`
	Parent uint64 `json:"p,omitempty"`
	Name   string `json:"n,omitempty"`
	Dir    bool   `json:"d,omitempty"`
	Forget bool   `json:"f,omitempty"`
}

// load reads the journal of earlier processes and writes a shorter one.
func (f *FS) load() error {
	f.nodes[fuse.FUSE_ROOT_ID] = &node{id: fuse.FUSE_ROOT_ID, dir: true, kids: map[string]*node{}}
	f.next = fuse.FUSE_ROOT_ID + 1
	path := filepath.Join(f.o.Dir, journalName)
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		var r record
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue // the last one of a process that was killed
		}
		f.replay(r)
	}
	if f.journal, err = os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, n := range f.nodes {
		if n.id == fuse.FUSE_ROOT_ID {
			continue
		}
		f.note(n)
		known[strconv.FormatUint(n.id, 10)] = true
		if err := f.loadBuffer(n); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(filepath.Join(f.o.Dir, buffers))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if id, _ := strings.CutSuffix(e.Name(), marker); !known[id] {
			os.Remove(filepath.Join(f.o.Dir, buffers, e.Name()))
		}
	}
	return os.Rename(path+".new", path)
}

func (f *FS) replay(r record) {
	f.next = max(f.next, r.ID+1)
	n := f.nodes[r.ID]
	if r.Forget {
		if n != nil {
			f.detach(n)
			delete(f.nodes, r.ID)
		}
		return
	}
	if n == nil {
		n = &node{id: r.ID, dir: r.Dir, old: true, kids: map[string]*node{}}
		f.nodes[r.ID] = n
	}
	f.detach(n)
	if parent := f.nodes[r.Parent]; parent != nil && r.Name != "" {
		f.attach(n, parent, r.Name)
	}
}

// note writes the place of a node into the journal. An error can only be that the disk is full: then the next process
// does not know the node, and the program gets an error.
func (f *FS) note(n *node) {
	r := record{ID: n.id, Dir: n.dir}
	if !n.gone {
		r.Parent, r.Name = n.parent.id, n.name
	}
	f.write(r)
}

func (f *FS) write(r record) {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = f.journal.Write(append(line, '\n'))
	}
	if err != nil && f.o.Log != nil {
		f.o.Log("the journal cannot be written: " + err.Error())
	}
}

// detach takes a node out of its directory; attach puts it into one. FS.mu is held.
func (f *FS) detach(n *node) {
	if n.parent != nil && n.parent.kids[n.name] == n {
		delete(n.parent.kids, n.name)
	}
	n.parent, n.gone = nil, true
}

func (f *FS) attach(n, parent *node, name string) {
	if other := parent.kids[name]; other != nil && other != n {
		f.detach(other)
	}
	parent.kids[name] = n
	n.parent, n.name, n.gone = parent, name, false
}

// node returns what the kernel calls by a number.
func (f *FS) node(id uint64) (*node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[id]; n != nil {
		return n, nil
	}
	return nil, store.ErrNotExist
}

// kid returns an entry of a directory that is known; nil: it is not.
func (f *FS) kid(parent *node, name string) *node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return parent.kids[name]
}

// key returns the key of a node. gone: it has none.
func (f *FS) key(n *node) (key string, gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.dir && n.id != fuse.FUSE_ROOT_ID {
		key = "/"
	}
	for ; n.id != fuse.FUSE_ROOT_ID; n = n.parent {
		if n.gone || n.parent == nil {
			return "", true
		}
		if n.parent.id == fuse.FUSE_ROOT_ID {
			key = n.name + key
		} else {
			key = "/" + n.name + key
		}
	}
	return key, false
}

// keyIn returns the key of an entry of a directory.
func (f *FS) keyIn(parent *node, name string) (string, error) {
	if len(name) > 255 {
		return "", syscall.ENAMETOOLONG
	}
	dir, gone := f.key(parent)
	if gone {
		return "", store.ErrNotExist
	}
	return dir + name, nil
}

// know returns the node of an entry, a new one if there was none of this type.
func (f *FS) know(parent *node, name string, dir bool) *node {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := parent.kids[name]
	if n != nil && n.dir != dir {
		f.detach(n)
		f.note(n)
		n = nil
	}
	if n == nil {
		n = &node{id: f.next, dir: dir, kids: map[string]*node{}}
		f.next++
		f.nodes[n.id] = n
		f.attach(n, parent, name)
		f.note(n)
	}
	n.lookups++
	return n
}

// lose takes a node out of its directory: it was deleted.
func (f *FS) lose(n *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.detach(n)
	f.note(n)
}

// Forget implements fuse.RawFileSystem.
func (f *FS) Forget(id, count uint64) {
	f.mu.Lock()
	n := f.nodes[id]
	if n == nil || id == fuse.FUSE_ROOT_ID {
		f.mu.Unlock()
		return
	}
	n.lookups -= min(n.lookups, count)
	busy := n.lookups > 0 || n.opens > 0 || n.old && !n.gone || len(n.kids) > 0
	f.mu.Unlock()
	if busy {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.buf != nil && n.buf.dirty && !n.gone {
		return // it is uploaded first
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.lookups > 0 || n.opens > 0 || len(n.kids) > 0 {
		return
	}
	f.drop(n)
	f.detach(n)
	delete(f.nodes, id)
	f.write(record{ID: id, Forget: true})
}

// refresh queries the store for a node, unless it is known. The node is locked. It has its own answer for what is not
// uploaded yet.
func (f *FS) refresh(ctx context.Context, n *node) error {
	if n.buf != nil && n.buf.dirty || time.Since(n.read) < validFor {
		return nil
	}
	key, gone := f.key(n)
	if gone && n.buf == nil && n.read.IsZero() {
		return store.ErrNotExist // of an earlier process, and deleted
	}
	if gone {
		return nil
	}
	i, err := f.o.Store.Stat(ctx, key)
	if n.id == fuse.FUSE_ROOT_ID && errors.Is(err, store.ErrNotExist) {
		i, err = store.Info{}, nil // an empty volume
	}
	if err != nil {
		return err
	}
	f.learn(n, i)
	return nil
}

// learn takes over what the store reports of a node. It drops a buffer of other content.
func (f *FS) learn(n *node, i store.Info) {
	if n.buf != nil && n.buf.dirty {
		return
	}
	if n.buf != nil && n.info.Tag != i.Tag {
		f.drop(n)
	}
	n.info, n.read = i, time.Now()
}

// meta returns the metadata of a locked node, with defaults for what another program has written.
func (f *FS) meta(n *node) store.Meta {
	m := n.info.Meta
	if n.buf != nil && n.buf.dirty {
		m = n.buf.meta
	}
	if !m.Known {
		m.Known, m.Mode, m.UID, m.GID = true, 0o666&^f.o.Umask, f.o.UID, f.o.GID
		if n.dir {
			m.Mode = 0o777 &^ f.o.Umask
		}
	}
	return m
}

// attr returns the attributes of a locked node.
func (f *FS) attr(n *node, out *fuse.Attr) {
	m, size := f.meta(n), n.info.Size
	if n.buf != nil {
		size = n.buf.size
	}
	*out = fuse.Attr{Ino: n.id, Mode: fuse.S_IFREG | m.Mode&0o7777, Nlink: 1, Size: uint64(size), Blocks: uint64(size+511) / 512,
		Blksize: blockSize, Owner: fuse.Owner{Uid: m.UID, Gid: m.GID}}
	if n.dir {
		out.Mode, out.Nlink, out.Size, out.Blocks = fuse.S_IFDIR|m.Mode&0o7777, 2, blockSize, 1
	}
	out.SetTimes(&m.Time, &m.Time, &m.Time)
}

func (f *FS) entry(n *node, out *fuse.EntryOut) {
	*out = fuse.EntryOut{NodeId: n.id, Generation: 1}
	out.SetEntryTimeout(validFor)
	out.SetAttrTimeout(validFor)
	f.attr(n, &out.Attr)
}
