// Package unixsocket opens sockets that only this process's user may use.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen opens a socket in a directory that exists. It removes an old one, of a process that was killed: the caller
// knows that no other process listens there.
func Listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// The file gets the mode of the socket at its creation, so it is never open to others.
		if control := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); control != nil {
			return control
		}
		return err
	}}
	l, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}
