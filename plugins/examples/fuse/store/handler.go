package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// readTime is how long a client may take for a request, and slowest the bytes in a second that it sends at least.
	readTime = 30 * time.Second
	slowest  = 256 << 10
	// countEvery is how often the objects of a volume are counted: other nodes write too.
	countEvery = time.Minute
	// countAgain is the shortest time between two counts because a volume is full.
	countAgain = 5 * time.Second
)

// Volume is a store that a Handler serves.
type Volume struct {
	Store Store
	// Capacity in bytes; 0: no limit.
	Capacity int64
	ReadOnly bool
	// Usage of the volume, by all who use it.
	Usage *Usage
}

// Handler serves volumes to clients that have no credentials, and may be hostile: they reach what find returns, and
// within its capacity. Objects of more than a part are uploaded one at a time, because a part is in memory.
func Handler(find func(volume string) (Volume, error)) http.Handler {
	h := &handler{find: find, large: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	for op, f := range map[string]func(*call) error{
		opCheck: h.check, opStat: h.stat, opList: h.list, opRead: h.read, opPut: h.put, opCopy: h.copy, opDelete: h.delete,
	} {
		mux.HandleFunc("POST "+op, func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, f) })
	}
	return mux
}

type handler struct {
	find  func(volume string) (Volume, error)
	large chan struct{}
}

// call is a request.
type call struct {
	Volume
	w       http.ResponseWriter
	r       *http.Request
	key, to string
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request, f func(*call) error) {
	q := r.URL.Query()
	c := &call{w: w, r: r, key: q.Get(argKey), to: q.Get(argTo)}
	var err error
	if c.Volume, err = h.find(q.Get(argVolume)); err == nil && !(validKey(c.key) && validKey(c.to)) {
		err = fmt.Errorf("the key %.100q is not possible: %w", c.key+c.to, syscall.EINVAL)
	}
	if err == nil {
		err = f(c)
	}
	if err != nil {
		fail(w, err)
	}
}

// answer with an object.
func (c *call) answer(i Info, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(c.w).Encode(i)
}

func (c *call) meta() (m Meta, err error) {
	err = json.Unmarshal([]byte(c.r.URL.Query().Get(argMeta)), &m)
	return m, err
}

func (c *call) number(arg string) (int64, error) {
	return strconv.ParseInt(c.r.URL.Query().Get(arg), 10, 64)
}

// writable returns an error if the client may only read.
func (c *call) writable() error {
	if c.ReadOnly {
		return fmt.Errorf("the volume is read-only: %w", syscall.EROFS)
	}
	return nil
}

func (h *handler) check(c *call) error { return c.Store.Check(c.r.Context()) }

func (h *handler) stat(c *call) error { return c.answer(c.Store.Stat(c.r.Context(), c.key)) }

func (h *handler) list(c *call) error {
	out := json.NewEncoder(c.w)
	var end listed
	if err := c.Store.List(c.r.Context(), c.key, c.r.URL.Query().Get(argRec) != "", func(i Info) error {
		return out.Encode(listed{Key: []byte(i.Key), Info: &i})
	}); err != nil {
		end.Failure = failureOf(err)
	}
	_ = out.Encode(end) // if that fails, the client is gone
	return nil
}

func (h *handler) read(c *call) error {
	offset, err := c.number(argOffset)
	length, err2 := c.number(argLength)
	if err := errors.Join(err, err2); err != nil || offset < 0 || length < 0 || length > maxRead {
		return fmt.Errorf("read %d bytes at %d: %w", length, offset, syscall.EINVAL)
	}
	p := make([]byte, length)
	if err := c.Store.Read(c.r.Context(), c.key, c.r.URL.Query().Get(argTag), offset, p); err != nil {
		return err
	}
	_, _ = c.w.Write(p) // if that fails, the client is gone
	return nil
}

func (h *handler) put(c *call) error {
	size := c.r.ContentLength
	meta, err := c.meta()
	if err == nil {
		err = c.writable()
	}
	if err == nil && (size < 0 || Info{Key: c.key}.Dir() && size > 0) {
		err = syscall.EINVAL
	}
	ctx := c.r.Context()
	if err == nil && !(Info{Key: c.key}).Dir() {
		err = c.Usage.grow(ctx, c.Volume, c.key, size)
	}
	if err != nil {
		return err
	}
	if size > streamPartSize {
		select {
		case h.large <- struct{}{}:
			defer func() { <-h.large }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	content := &body{Reader: c.r.Body, conn: http.NewResponseController(c.w)}
	if size > 0 {
		if err := content.conn.SetReadDeadline(time.Now().Add(readTime + time.Duration(size/slowest)*time.Second)); err != nil {
			return err
		}
	}
	return c.answer(c.Store.Put(ctx, c.key, content, size, meta))
}

// body is the content of a request, which the client has to send in time. The store may take longer.
type body struct {
	io.Reader
	conn *http.ResponseController
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil { // io.EOF, or the client is gone
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (h *handler) copy(c *call) error {
	meta, err := c.meta()
	if err == nil {
		err = c.writable()
	}
	ctx := c.r.Context()
	if err == nil && c.key != c.to {
		var from Info
		if from, err = c.Store.Stat(ctx, c.key); err == nil {
			err = c.Usage.grow(ctx, c.Volume, c.to, from.Size)
		}
	}
	if err != nil {
		return err
	}
	return c.answer(c.Store.Copy(ctx, c.key, c.to, meta))
}

func (h *handler) delete(c *call) error {
	if err := c.writable(); err != nil {
		return err
	}
	c.Usage.shrunk()
	return c.Store.Delete(c.r.Context(), c.key)
}

// Usage keeps a volume to its capacity. The client does so too, more exactly: this is for one that does not.
type Usage struct {
	mu      sync.Mutex
	used    int64
	counted time.Time // zero: to be counted before anything is refused
	again   bool      // it may have shrunk
}

func (u *Usage) shrunk() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.again = true
}

// grow takes the space of an object, or returns ErrFull.
func (u *Usage) grow(ctx context.Context, v Volume, key string, size int64) error {
	if v.Capacity == 0 {
		return nil
	}
	old, err := v.Store.Stat(ctx, key)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	growth := size - old.Size
	age := time.Since(u.counted)
	if age > countEvery || u.used+growth > v.Capacity && (u.again || age > countAgain) {
		var used int64
		if err := v.Store.List(ctx, "", true, func(i Info) error { used += i.Size; return nil }); err != nil {
			return fmt.Errorf("count the files: %w", err)
		}
		u.used, u.counted, u.again = used, time.Now(), false
	}
	if growth > 0 && u.used+growth > v.Capacity {
		return fmt.Errorf("%w: the volume has %d bytes, and %d of them are used", ErrFull, v.Capacity, u.used)
	}
	u.used += growth
	return nil
}
