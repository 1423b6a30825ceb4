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
	t := tree{}
	if err := t.remove(parent, filepath.Base(path), 0); err != nil {
		return fmt.Errorf("delete %s: %w", path, err)
	}
	return nil
}

// tree is a directory that is being deleted. How deep it is was decided by a pod, and each level costs a descriptor and
// memory: what is deeper than maxDepth is moved up.
type tree struct {
	root  *os.File
	moved int // the number in the name of the last one
}

const maxDepth = 64

// remove deletes a file or a directory in an open directory.
func (t *tree) remove(parent *os.File, name string, depth int) error {
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	if depth > maxDepth && t.moveUp(parent, name) {
		return nil
	}
	dir, err := openBeneath(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if depth == 0 {
		t.root = dir
	}
	if err := t.empty(dir, depth); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

// moveUp moves a directory to the root of the tree, where it is found again. It reports false where the kernel refuses
// that, as for something that is mounted.
func (t *tree) moveUp(parent *os.File, name string) bool {
	for n := t.moved + 1; ; n++ {
		err := unix.Renameat2(int(parent.Fd()), name, int(t.root.Fd()), fmt.Sprintf("moved-%d", n), unix.RENAME_NOREPLACE)
		switch {
		case err == nil:
			t.moved = n
			return true
		case !errors.Is(err, unix.EEXIST):
			return false
		}
	}
}

// openBeneath opens a directory in another one, on the same mount. RESOLVE_NO_XDEV also refuses bind mounts of the same
// file system, which have the same device number.
func openBeneath(parent *os.File, name string) (*os.File, error) {
	for {
		fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
		})
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: something was renamed at the same time
		case errors.Is(err, unix.EXDEV):
			return nil, fmt.Errorf("%w: something is mounted at %s in %s: unmount it", errInUse, name, parent.Name())
		default:
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// empty empties a directory. Deleting may hide entries from the reader, and directories may be moved here, so it reads
// until a pass deletes nothing.
func (t *tree) empty(dir *os.File, depth int) error {
	for {
		var failed error
		deleted, moved := false, t.moved
		for {
			names, err := dir.Readdirnames(1024)
			for _, name := range names {
				if err := t.remove(dir, name, depth+1); err != nil {
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
		if !deleted && (depth > 0 || t.moved == moved) {
			return failed
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}
