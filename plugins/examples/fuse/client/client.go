// Package client is the process that serves the files of one volume on one node, wherever it runs: beside the node
// plugin, in its own pod, or in the pod that uses the volume.
//
// It needs no rights. The driver mounts, and hands the connection to the kernel, an open /dev/fuse, over a socket in
// the directory of the client. The driver keeps a copy: when the client dies, the next one continues with the same
// connection, and the programs that use the volume wait that long. The client keeps a copy too, for when the driver
// dies.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/plugins/examples/fuse/filesystem"
	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

const (
	// checkEvery is how often a store that is away is tried again.
	checkEvery = time.Second
	// checkTimeout bounds a try.
	checkTimeout = 10 * time.Second
	// attachTimeout bounds the start of the service: objects are counted, and those of an earlier mount uploaded.
	attachTimeout = 5 * time.Minute
	// endTimeout is how long buffers are uploaded when the client has to end.
	endTimeout = 20 * time.Second
)

// mountsDir has a directory for each mount, in the directory of a client.
const mountsDir = "mounts"

// Config is the file that describes its volume to a client.
type Config struct {
	// Store has the files of the volume.
	Store store.Config `json:"store"`
	// Capacity in bytes; 0: no limit.
	Capacity int64 `json:"capacity,omitempty"`
}

// Client serves a volume.
type Client struct {
	dir    string
	config Config
	store  store.Store
	log    func(string)

	mu     sync.Mutex
	ready  bool
	reason string
	mount  string   // that is served
	device *os.File // the connection to the kernel
	// deviceFD is that of device. device.Fd would make it blocking.
	deviceFD int
	files    *filesystem.FS
}

// Run is the client: it serves the volume of a configuration file until ctx ends. The file may be written later. dir is
// its directory.
func Run(ctx context.Context, dir, configFile string, log func(string)) error {
	c := &Client{dir: dir, log: log, reason: "it waits for " + configFile}
	own, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer own.Close()
	if err := lock(ctx, own); err != nil { // an earlier client, which is being ended
		return err
	}
	listener, err := Listen("unixpacket", dir, socketName)
	if err != nil {
		return err
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var work sync.WaitGroup
	work.Go(func() {
		c.prepare(ctx, func() (Config, store.Store, error) { return configured(configFile) })
	})
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			break
		}
		work.Go(func() { c.talk(ctx, conn) })
	}
	work.Wait()
	return c.end()
}

// end uploads what is left.
func (c *Client) end() error {
	c.mu.Lock()
	files := c.files
	c.mu.Unlock()
	if files == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	return files.Sync(ctx)
}

// prepare reads the configuration and waits for the store.
func (c *Client) prepare(ctx context.Context, open func() (Config, store.Store, error)) {
	for {
		if err := c.configure(ctx, open); err == nil {
			return
		} else {
			c.setReason(err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(checkEvery / 4):
		}
	}
}

func (c *Client) setReason(reason string) {
	c.mu.Lock()
	news := reason != c.reason && reason != ""
	c.reason = reason
	c.ready = reason == ""
	c.mu.Unlock()
	if news {
		c.log(reason)
	}
}

// configured returns the content of a configuration file, and the store that it names.
func configured(configFile string) (config Config, s store.Store, err error) {
	text, err := os.ReadFile(configFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, nil, fmt.Errorf("it waits for %s", configFile)
	}
	if err != nil {
		return Config{}, nil, err
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return Config{}, nil, fmt.Errorf("%s: %w", configFile, err)
	}
	s, err = store.Open(config.Store)
	return config, s, err
}

func (c *Client) configure(ctx context.Context, open func() (Config, store.Store, error)) error {
	config, s, err := open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := s.Check(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	c.config, c.store = config, s
	c.mu.Unlock()
	c.setReason("")
	return nil
}

// talk answers the requests of one connection.
func (c *Client) talk(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	for {
		var r Request
		fd, err := receive(conn, &r)
		if err != nil {
			return
		}
		a, with, err := c.handle(ctx, r, fd)
		if err != nil {
			a.Error = err.Error()
		}
		if send(conn, a, with) != nil {
			return
		}
	}
}

func (c *Client) handle(ctx context.Context, r Request, fd int) (a Answer, with int, err error) {
	with = -1
	if r.Op != "attach" {
		closeFD(fd)
	}
	switch r.Op {
	case "status":
	case "attach":
		err = c.attach(ctx, r, fd)
	case "device":
		c.mu.Lock()
		if c.device == nil {
			err = errors.New("it serves no mount")
		} else {
			with = c.deviceFD
		}
		c.mu.Unlock()
	case "sync":
		c.mu.Lock()
		files := c.files
		c.mu.Unlock()
		if files != nil {
			ctx, cancel := context.WithTimeout(ctx, endTimeout)
			defer cancel()
			err = files.Sync(ctx)
		}
	case "usage":
		c.mu.Lock()
		if c.files == nil {
			err = errors.New("it serves no mount")
		} else {
			a.Usage = usageOf(c.files)
		}
		c.mu.Unlock()
	case "resize":
		c.mu.Lock()
		c.config.Capacity = r.Capacity
		if c.files != nil {
			c.files.SetCapacity(r.Capacity)
		}
		c.mu.Unlock()
	default:
		err = fmt.Errorf("unknown operation %q: the driver is newer than the client", r.Op)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a.Ready, a.Reason, a.Mount, a.PID = c.ready, c.reason, c.mount, os.Getpid()
	return a, with, err
}

func usageOf(files *filesystem.FS) *Usage {
	var s fuse.StatfsOut
	files.StatFs(nil, nil, &s)
	size := int64(s.Bsize)
	return &Usage{Bytes: int64(s.Blocks) * size, BytesFree: int64(s.Bavail) * size, Files: int64(s.Files), FilesFree: int64(s.Ffree)}
}

// attach begins to serve a mount, or continues with it.
func (c *Client) attach(ctx context.Context, r Request, fd int) (err error) {
	if fd < 0 {
		return errors.New("attach without a file")
	}
	if err := unix.SetNonblock(fd, true); err != nil { // requests are waited for without a thread
		closeFD(fd)
		return err
	}
	device := os.NewFile(uintptr(fd), "/dev/fuse")
	defer func() {
		if err != nil {
			device.Close()
		}
	}()
	c.mu.Lock()
	config, s, ready, mount := c.config, c.store, c.ready, c.mount
	c.mu.Unlock()
	switch {
	case !ready:
		return errors.New("its store is not ready")
	case mount == r.Mount:
		device.Close()
		return nil
	case mount != "":
		return fmt.Errorf("it serves another mount, %s", mount)
	}
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	dir := filepath.Join(c.dir, mountsDir, r.Mount)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := c.recover(ctx, s, r.Mount); err != nil {
		return fmt.Errorf("upload what an earlier mount has left: %w", err)
	}
	files, err := filesystem.Open(ctx, filesystem.Options{Store: s, Dir: dir, Capacity: config.Capacity,
		UID: r.Options.UID, GID: r.Options.GID, Umask: r.Options.Umask, Log: c.log})
	if err != nil {
		return err
	}
	session, err := openSession(ctx, device, dir, files, c.log)
	if err != nil {
		return errors.Join(err, files.Close())
	}
	c.mu.Lock()
	c.mount, c.device, c.deviceFD, c.files = r.Mount, device, fd, files
	c.mu.Unlock()
	go c.serve(session, files, dir)
	return nil
}

// recover uploads what the mounts before this one have left.
func (c *Client) recover(ctx context.Context, s store.Store, current string) error {
	entries, err := os.ReadDir(filepath.Join(c.dir, mountsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == current {
			continue
		}
		if err := filesystem.Recover(ctx, s, filepath.Join(c.dir, mountsDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// serve the kernel until the volume is unmounted.
func (c *Client) serve(s *session, files *filesystem.FS, dir string) {
	if err := s.serve(); err != nil {
		c.log(err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	err := files.Sync(ctx)
	if err == nil {
		err = errors.Join(files.Close(), os.RemoveAll(dir))
	}
	if err != nil {
		c.log("after the mount: " + err.Error()) // the next mount uploads it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.device.Close()
	c.mount, c.device, c.files = "", nil, nil
}
