package local

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// removeTree deletes a directory of the store and everything in it. It does not cross mounts or follow symbolic links:
// a pod may have left a mount in its volume (mountPropagation: Bidirectional), whose contents are not the volume's. It
// goes on after a file that it cannot delete; the error names the first one.
func removeTree(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	return removeAt(parent, filepath.Base(path))
}

// removeAt deletes a file or a directory in an open directory.
func removeAt(parent *os.File, name string) error {
	path := filepath.Join(parent.Name(), name)
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	dir, err := openBeneath(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := removeEntries(dir); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// openBeneath opens a directory in another one, on the same mount. RESOLVE_NO_XDEV also refuses bind mounts of the same
// file system, which have the same device number.
func openBeneath(parent *os.File, name string) (*os.File, error) {
	path := filepath.Join(parent.Name(), name)
	for {
		fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
		})
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: something was renamed at the same time
		case errors.Is(err, unix.EXDEV):
			return nil, fmt.Errorf("%w: something is mounted at %s: unmount it", errInUse, path)
		default:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// removeEntries empties a directory. Deleting may hide entries from the reader, so it reads until a pass deletes
// nothing.
func removeEntries(dir *os.File) error {
	for {
		var failed error
		deleted := false
		for {
			names, err := dir.Readdirnames(1024)
			for _, name := range names {
				if err := removeAt(dir, name); err != nil {
					failed = cmp.Or(failed, err)
				} else {
					deleted = true
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		if !deleted {
			return failed
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}
