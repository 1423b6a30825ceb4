package filesystem

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

const (
	// fetchSize is how much of an object is read at once.
	fetchSize = 4 << 20
	// marker is the suffix of a file that marks the buffer beside it for upload.
	marker = ".dirty"
)

// buffer is the content of a file on this node, or a part of it.
type buffer struct {
	file *os.File
	size int64
	have map[int64]bool // the blocks that were fetched; nil: all
	// dirty: it differs from the object. Then it is complete, and meta is that of the file.
	dirty bool
	meta  store.Meta
}

// mark is the content of a buffer's marker: where the buffer belongs, for when the mount is gone.
type mark struct {
	Key  string     `json:"key"`
	Meta store.Meta `json:"meta"`
}

func (f *FS) bufferPath(n *node) string {
	return filepath.Join(f.o.Dir, buffers, strconv.FormatUint(n.id, 10))
}

// loadBuffer takes over what an earlier process has left of a file: what it had not uploaded, and deleted files, which
// may be open.
func (f *FS) loadBuffer(n *node) error {
	path := f.bufferPath(n)
	text, err := os.ReadFile(path + marker)
	dirty := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !dirty && !n.gone {
		os.Remove(path)
		return nil
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	var m mark
	if dirty && json.Unmarshal(text, &m) != nil {
		m.Meta = store.Meta{Known: true, Mode: 0o600} // the process was killed while it wrote the marker
	}
	m.Meta.Time = info.ModTime()
	n.buf = &buffer{file: file, size: info.Size(), dirty: dirty, meta: m.Meta}
	return nil
}

// buffer creates the buffer of a locked node if it has none. Nothing of it is fetched.
func (f *FS) buffer(n *node) (*buffer, error) {
	if n.buf != nil {
		return n.buf, nil
	}
	file, err := os.OpenFile(f.bufferPath(n), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := file.Truncate(n.info.Size); err != nil {
		file.Close()
		return nil, err
	}
	n.buf = &buffer{file: file, size: n.info.Size, have: map[int64]bool{}}
	if n.info.Size == 0 {
		n.buf.have = nil
	}
	return n.buf, nil
}

// drop removes the buffer of a locked node.
func (f *FS) drop(n *node) {
	if n.buf == nil {
		return
	}
	n.buf.file.Close()
	os.Remove(f.bufferPath(n))
	os.Remove(f.bufferPath(n) + marker)
	n.buf = nil
}

// fetch makes a part of a locked file available in its buffer.
func (f *FS) fetch(ctx context.Context, n *node, offset, length int64) (*buffer, error) {
	for try := 0; ; try++ {
		b, err := f.fetchOnce(ctx, n, offset, length)
		if !errors.Is(err, store.ErrChanged) || try == 3 {
			return b, err
		}
		n.read = time.Time{} // another node has written it
		if err := f.refresh(ctx, n); err != nil {
			return nil, err
		}
		f.drop(n)
	}
}

func (f *FS) fetchOnce(ctx context.Context, n *node, offset, length int64) (*buffer, error) {
	b, err := f.buffer(n)
	if err != nil || b.have == nil {
		return b, err
	}
	key, gone := f.key(n)
	if gone {
		return nil, store.ErrNotExist
	}
	end := min(offset+length, b.size)
	for block := offset / fetchSize; block*fetchSize < end; block++ {
		if b.have[block] {
			continue
		}
		p := make([]byte, min(fetchSize, b.size-block*fetchSize))
		if err := f.o.Store.Read(ctx, key, n.info.Tag, block*fetchSize, p); err != nil {
			return nil, err
		}
		if _, err := b.file.WriteAt(p, block*fetchSize); err != nil {
			return nil, err
		}
		b.have[block] = true
	}
	if int64(len(b.have))*fetchSize >= b.size {
		b.have = nil
	}
	return b, nil
}

// change makes the buffer of a locked file complete, up to a size, and dirty.
func (f *FS) change(ctx context.Context, n *node, upTo int64) (b *buffer, err error) {
	if upTo == 0 && (n.buf == nil || n.buf.have != nil) { // nothing of it is needed
		meta := f.meta(n)
		old := n.info
		f.drop(n)
		n.info.Size = 0
		b, err = f.buffer(n)
		n.info = old
		if err != nil {
			return nil, err
		}
		b.meta = meta
	} else if b, err = f.fetch(ctx, n, 0, n.info.Size); err != nil {
		return nil, err
	}
	if b.dirty {
		return b, nil
	}
	b.meta = f.meta(n)
	if err := f.mark(n); err != nil {
		return nil, err
	}
	b.dirty = true
	return b, nil
}

// mark writes the marker of a buffer.
func (f *FS) mark(n *node) error {
	key, gone := f.key(n)
	if gone {
		return nil
	}
	text, err := json.Marshal(mark{key, n.buf.meta})
	if err != nil {
		return err
	}
	return os.WriteFile(f.bufferPath(n)+marker, text, 0o600)
}

// resize changes the size of a locked file.
func (f *FS) resize(ctx context.Context, n *node, size int64) error {
	before := n.info.Size
	if n.buf != nil {
		before = n.buf.size
	}
	if err := f.grow(size-before, 0); err != nil {
		return err
	}
	b, err := f.change(ctx, n, size)
	if err == nil {
		err = b.file.Truncate(size)
	}
	if err != nil {
		f.grow(before-size, 0)
		return err
	}
	b.size, b.meta.Time = size, time.Now()
	return nil
}

// upload writes the buffer of a locked file into the store, if it has to be.
func (f *FS) upload(ctx context.Context, n *node) error {
	if n.buf == nil || !n.buf.dirty {
		return nil
	}
	key, gone := f.key(n)
	if gone {
		return nil // deleted, and open: it is nowhere else
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout+time.Duration(n.buf.size/slowestUpload)*time.Second)
	defer cancel()
	i, err := f.o.Store.Put(ctx, key, io.NewSectionReader(n.buf.file, 0, n.buf.size), n.buf.size, n.buf.meta)
	if err != nil {
		return err
	}
	os.Remove(f.bufferPath(n) + marker)
	n.buf.dirty = false
	n.info, n.read = i, time.Now()
	return nil
}

// Recover uploads what a mount that is gone has left in its directory, and removes that.
func Recover(ctx context.Context, s store.Store, dir string) error {
	entries, err := os.ReadDir(filepath.Join(dir, buffers))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		id, isMarker := strings.CutSuffix(e.Name(), marker)
		if !isMarker {
			continue
		}
		if err := recoverBuffer(ctx, s, filepath.Join(dir, buffers, id)); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

func recoverBuffer(ctx context.Context, s store.Store, path string) error {
	text, err := os.ReadFile(path + marker)
	if err != nil {
		return err
	}
	var m mark
	file, err := os.Open(path)
	if err != nil || json.Unmarshal(text, &m) != nil || m.Key == "" {
		return nil // the process was killed before the first byte
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	m.Meta.Time = info.ModTime()
	if _, err := s.Put(ctx, m.Key, io.NewSectionReader(file, 0, info.Size()), info.Size(), m.Meta); err != nil {
		return err
	}
	return os.Remove(path + marker)
}
