package tasks

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/fifo"
	"golang.org/x/sys/unix"
)

// streams are the files of a process's input and output, in the order that the keeper expects.
type streams struct {
	flags    uint32
	files    []int
	terminal bool   // the files are for its terminal
	uid, gid uint32 // own the pipes
}

// openStreams opens the FIFOs of a process once those of its output have a reader. A reader that opens its FIFO after
// the last writer has closed it blocks for ever, even if nothing was written; containerd opens it in the background.
func openStreams(ctx context.Context, io runtime.IO, uid, gid uint32) (*streams, error) {
	s := &streams{terminal: io.Terminal, uid: uid, gid: gid}
	open := func(path string, flags int, flag uint32) error {
		fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		s.flags |= flag
		s.files = append(s.files, fd)
		return nil
	}
	openOutput := func(path string, flag uint32) error {
		if !isPipe(path) {
			return open(path, unix.O_WRONLY|unix.O_APPEND, flag)
		}
		w, err := fifo.OpenFifo(ctx, path, unix.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("wait for a reader of %s: %w", path, err)
		}
		defer w.Close()
		// Open for both, it never ends for the process or for its reader, whoever else has it open.
		return open(path, unix.O_RDWR, flag)
	}
	var err error
	if io.Stdin != "" { // the writer keeps the end of input away until CloseIO
		err = errors.Join(open(io.Stdin, unix.O_RDONLY, flagStdin), open(io.Stdin, unix.O_WRONLY, flagStdin))
	}
	if io.Stdout != "" && err == nil {
		err = openOutput(io.Stdout, flagStdout)
	}
	if io.Stderr != "" && !io.Terminal && err == nil {
		err = openOutput(io.Stderr, flagStderr)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// isPipe reports whether an output is a FIFO, and not a file that grows.
func isPipe(path string) bool {
	var stat unix.Stat_t
	return unix.Stat(path, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFIFO
}

// close closes them here; the keeper has its own.
func (s *streams) close() {
	for _, fd := range s.files {
		_ = unix.Close(fd)
	}
}

// isFIFO reports whether output goes to a path, and not to a program or a file as a URI names it.
func isFIFO(io runtime.IO) bool { return !strings.Contains(io.Stdout+io.Stderr, "://") }
