package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// socketName is the socket of a client in its directory.
const socketName = "client.sock"

// The sockets of the driver, in the directory that a pod with a sidecar has.
const (
	DriverSocket = "driver.sock" // see Hello
	StoreSocket  = "store.sock"  // of a store.Handler
)

// maxMessage is the size of a message on the socket.
const maxMessage = 16 << 10

// Request of the driver to a client: one of the operations, with its arguments.
type Request struct {
	// Op is status, attach (with the connection to the kernel), device (returns it), sync, resize, or usage.
	Op string `json:"op"`
	// Mount identifies a connection to the kernel, for attach.
	Mount string `json:"mount,omitempty"`
	// Options of the mount, for attach.
	Options Options `json:"options"`
	// Capacity in bytes, for resize.
	Capacity int64 `json:"capacity,omitempty"`
}

// Options of a mount.
type Options struct {
	UID   uint32 `json:"uid,omitempty"`
	GID   uint32 `json:"gid,omitempty"`
	Umask uint32 `json:"umask,omitempty"`
}

// Answer of a client.
type Answer struct {
	Error string `json:"error,omitempty"`
	// Ready: the store can be used. Otherwise Reason says why not.
	Ready  bool   `json:"ready,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Mount that it serves; empty: none.
	Mount string `json:"mount,omitempty"`
	// PID of the client where it runs.
	PID int `json:"pid,omitempty"`
	// Usage is the answer to usage.
	Usage *Usage `json:"usage,omitempty"`
}

// Usage of a volume.
type Usage struct {
	Bytes, BytesFree, Files, FilesFree int64
}

// Hello is the first message on a connection that a sidecar opens to the driver: what the connection is for.
type Hello struct {
	// Op is volumes: the driver answers with Volumes; or serve or work: the driver makes its requests. It has one of
	// each for a volume, and waits on serve for the end of the client. Or end: the sidecar was asked to end, and has
	// done so when the connection ends.
	Op     string `json:"op"`
	Volume string `json:"volume,omitempty"`
}

// Volumes are those that a pod has.
type Volumes struct {
	Volumes []Volume `json:"volumes"`
}

// Volume of a pod.
type Volume struct {
	ID       string `json:"id"`
	Capacity int64  `json:"capacity,omitempty"` // in bytes; 0: no limit
}

// Conn is the driver's connection to a client. It ends with the client.
type Conn struct{ conn *net.UnixConn }

// Dial connects to the client of a directory.
func Dial(dir string) (*Conn, error) {
	conn, err := dialPacket(dir, socketName)
	if err != nil {
		return nil, err
	}
	return &Conn{conn}, nil
}

func dialPacket(dir, name string) (*net.UnixConn, error) {
	path, done, err := shortPath(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: path})
}

// Listen at a socket in a directory, in the place of one that is there. network is unixpacket or unix.
func Listen(network, dir, name string) (*net.UnixListener, error) {
	path, done, err := shortPath(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: path})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // the path is valid here only
	return listener, nil
}

// shortPath returns a path of a socket in a directory that is not too long for a socket. It is valid until done.
func shortPath(dir, name string) (path string, done func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join("/proc/self/fd", fmt.Sprint(d.Fd()), name), func() { d.Close() }, nil
}

// Accept returns what a connection is for that a sidecar has opened, and the connection. It waits for that until the
// deadline.
func Accept(conn *net.UnixConn, deadline time.Time) (Hello, *Conn, error) {
	var h Hello
	if err := conn.SetDeadline(deadline); err != nil {
		return h, nil, err
	}
	fd, err := receive(conn, &h)
	closeFD(fd)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	return h, &Conn{conn}, err
}

// AnswerVolumes answers a Hello.
func (c *Conn) AnswerVolumes(v Volumes) error { return send(c.conn, v, -1) }

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Do sends a request, with a file descriptor for attach, and returns the answer, with one for device; -1: none.
func (c *Conn) Do(ctx context.Context, r Request, with int) (a Answer, fd int, err error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(time.Minute)
	}
	if err := c.conn.SetDeadline(deadline); err != nil {
		return Answer{}, -1, err
	}
	defer c.conn.SetDeadline(time.Time{})
	if err := send(c.conn, r, with); err != nil {
		return Answer{}, -1, fmt.Errorf("the client of the volume: %w", err)
	}
	if fd, err = receive(c.conn, &a); err != nil {
		return Answer{}, -1, fmt.Errorf("the client of the volume: %w", err)
	}
	if a.Error != "" || r.Op != "device" {
		closeFD(fd)
		fd = -1
	}
	if a.Error != "" {
		return a, -1, errors.New(a.Error)
	}
	if r.Op == "device" && !isDevice(fd) { // a sidecar may send anything
		closeFD(fd)
		return a, -1, errors.New("the client of the volume: what it has sent is not the connection to the kernel")
	}
	return a, fd, nil
}

// isDevice reports whether a file is a /dev/fuse.
func isDevice(fd int) bool {
	var have, want unix.Stat_t
	return fd >= 0 && unix.Fstat(fd, &have) == nil && unix.Stat("/dev/fuse", &want) == nil && have.Mode&unix.S_IFMT == unix.S_IFCHR && have.Rdev == want.Rdev
}

// Wait waits until the client has ended, or ctx ends. No request may be sent meanwhile.
func (c *Conn) Wait(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var a Answer
	fd, _ := receive(c.conn, &a) // it sends nothing without a request
	closeFD(fd)
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

func send(conn *net.UnixConn, v any, with int) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var rights []byte
	if with >= 0 {
		rights = unix.UnixRights(with)
	}
	_, _, err = conn.WriteMsgUnix(text, rights, nil)
	return err
}

// receive reads a message and the file descriptor in it; -1: there is none.
func receive(conn *net.UnixConn, v any) (fd int, err error) {
	text, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return -1, err
	}
	if n == 0 {
		return -1, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return -1, err
	}
	fd = -1
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			return -1, err
		}
		for _, next := range fds {
			closeFD(fd) // one is wanted
			unix.CloseOnExec(next)
			fd = next
		}
	}
	if err := json.Unmarshal(text[:n], v); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// lock waits until no other process holds a file.
func lock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another client works in %s: %w", filepath.Dir(f.Name()), ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
