package logging

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// FileSize is the maximum size of a log file in bytes.
	FileSize = 10 << 20
	// FilesKept is how many full files are kept, as NAME.1 (the newest), NAME.2 and so on.
	FilesKept = 3
)

// File is a log file that only its owner may read. When it is full it becomes NAME.1, and a new one begins. If standard
// error is the same file, as with OpenRC's error_log, it moves to the new one too, and with it what the Go runtime
// writes about a panic.
type File struct {
	name string
	size int64 // at which it is full
	keep int

	mu      sync.Mutex
	file    *os.File
	written int64
	stderr  int // the descriptor of standard error if that is this file, else -1
}

// OpenFile opens or creates a log file, and appends to it.
func OpenFile(name string) (*File, error) { return openFile(name, FileSize, FilesKept) }

// NewFile creates a log file. An existing file of that name is kept as NAME.1.
func NewFile(name string) (*File, error) {
	if err := shift(name, FilesKept); err != nil {
		return nil, err
	}
	return OpenFile(name)
}

func openFile(name string, size int64, keep int) (*File, error) {
	f := &File{name: name, size: size, keep: keep, stderr: -1}
	if opened, err := os.Stat(name); err == nil {
		if stderr, err := os.Stderr.Stat(); err == nil && os.SameFile(opened, stderr) {
			f.stderr = int(os.Stderr.Fd())
		}
	}
	return f, f.open()
}

// open opens the file.
func (f *File) open() error {
	file, err := os.OpenFile(f.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create the log file: %w", err)
	}
	// An existing file may be readable by others.
	err = file.Chmod(0o600)
	var info fs.FileInfo
	if err == nil {
		info, err = file.Stat()
	}
	if err == nil && f.stderr >= 0 {
		err = unix.Dup3(int(file.Fd()), f.stderr, 0)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("create the log file %s: %w", f.name, err), file.Close())
	}
	f.file, f.written = file, info.Size()
	return nil
}

// Write implements io.Writer. The bytes of one call stay in one file.
func (f *File) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.written > 0 && f.written+int64(len(p)) > f.size {
		f.rotate()
	}
	n, err := f.file.Write(p)
	f.written += int64(n)
	return n, err
}

// rotate begins a new file. If it cannot, the old one goes on: a growing log is better than none.
func (f *File) rotate() {
	full := f.file
	if shift(f.name, f.keep) != nil || f.open() != nil {
		f.written = 0 // tries again later, but not with each line
		return
	}
	full.Close()
}

// Close closes the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}

// shift renames NAME to NAME.1, NAME.1 to NAME.2 and so on. The last is overwritten.
func shift(name string, keep int) error {
	for n := keep; n > 0; n-- {
		from := name
		if n > 1 {
			from = fmt.Sprintf("%s.%d", name, n-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", name, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep the log file %s: %w", filepath.Base(from), err)
		}
	}
	return nil
}
