package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// socketName is the socket of a client in its directory.
const socketName = "client.sock"

// maxMessage is the size of a message on the socket.
const maxMessage = 16 << 10

// Request of the driver to a client: one of the operations, with its arguments.
type Request struct {
	// Op is status, attach (with the connection to the kernel), device (returns it), sync, or resize.
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
}

// Conn is the driver's connection to a client. It ends with the client.
type Conn struct{ conn *net.UnixConn }

// Dial connects to the client of a directory.
func Dial(dir string) (*Conn, error) {
	path, done, err := shortPath(dir)
	if err != nil {
		return nil, err
	}
	defer done()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		return nil, err
	}
	return &Conn{conn}, nil
}

// shortPath returns a path of the socket in a directory that is not too long for a socket. It is valid until done.
func shortPath(dir string) (path string, done func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join("/proc/self/fd", fmt.Sprint(d.Fd()), socketName), func() { d.Close() }, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Do makes a request, with a file descriptor for attach, and returns the answer, with one for device; -1: none.
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
	if a.Error != "" {
		closeFD(fd)
		return a, -1, errors.New(a.Error)
	}
	return a, fd, nil
}

// Wait waits until the client has ended, or ctx ends. No request may be made meanwhile.
func (c *Conn) Wait(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var a Answer
	fd, _ := receive(c.conn, &a) // it says nothing without being asked
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
		for _, fd = range fds {
			unix.CloseOnExec(fd)
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
