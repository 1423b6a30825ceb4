package tasks

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/runtime"
	"golang.org/x/sys/unix"
)

// streams are the files of a process's input and output, in the order that the keeper expects.
type streams struct {
	flags    uint32
	files    []int
	uid, gid uint32 // own the pipes
}

// openStreams opens the FIFOs of a process.
func openStreams(io runtime.IO, uid, gid uint32) (*streams, error) {
	s := &streams{uid: uid, gid: gid}
	open := func(path string, flags int, flag uint32) error {
		fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		s.flags |= flag
		s.files = append(s.files, fd)
		return nil
	}
	var err error
	if io.Stdin != "" { // the writer keeps the end of input away until CloseIO
		err = errors.Join(open(io.Stdin, unix.O_RDONLY, flagStdin), open(io.Stdin, unix.O_WRONLY, flagStdin))
	}
	// A FIFO that is open for both never ends for its reader and its writer, whoever else has it open.
	if io.Stdout != "" && err == nil {
		err = open(io.Stdout, output(io.Stdout), flagStdout)
	}
	if io.Stderr != "" && !io.Terminal && err == nil {
		err = open(io.Stderr, output(io.Stderr), flagStderr)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// output returns the mode of an output: a FIFO, or a file that grows.
func output(path string) int {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) == nil && stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return unix.O_WRONLY | unix.O_APPEND
	}
	return unix.O_RDWR
}

// close closes them here; the keeper has its own.
func (s *streams) close() {
	for _, fd := range s.files {
		_ = unix.Close(fd)
	}
}

// isFIFO reports whether output goes to a path, and not to a program or a file as a URI names it.
func isFIFO(io runtime.IO) bool { return !strings.Contains(io.Stdout+io.Stderr, "://") }
