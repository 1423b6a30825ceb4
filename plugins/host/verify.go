package host

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// executable is a plugin's program, open: what was checked is what is started, whatever the path leads to by then.
type executable struct {
	file   *os.File
	path   string
	id     fileID
	sha256 string
	script bool // has an interpreter, which opens the path itself
}

// fileID tells whether a file may have changed without reading it: every change of content or mode sets ctime.
type fileID struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func idOf(st *unix.Stat_t) fileID {
	return fileID{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
}

// statID is the zero value when there is no such file.
func statID(path string) fileID {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}
	}
	return idOf(&st)
}

// verify opens a program that may be started: a regular file that only root or this user can have written or put there, with the wanted
// checksum. Who owns the data directory is above all this: the CA is in it. The error says what to do.
func verify(spec *Spec, dataDir string) (_ *executable, err error) {
	// O_NONBLOCK: opening a fifo would wait for a writer.
	fd, err := unix.Open(spec.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist: copy it there, or remove the plugin from %s", spec.Path, spec.Source)
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened: %w", spec.Path, err)
	}
	e := &executable{file: os.NewFile(uintptr(fd), spec.Path), path: spec.Path}
	defer func() {
		if err != nil {
			e.file.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", spec.Path, err)
	}
	e.id = idOf(&st)
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is not a regular file: name the program itself", spec.Path)
	case st.Mode&0o111 == 0:
		return nil, fmt.Errorf("%s is not executable: chmod +x it", spec.Path)
	}
	if err := ownedByUs(spec.Path, &st); err != nil {
		return nil, err
	}
	if err := OnlyOurs(spec.Path, dataDir); err != nil {
		return nil, err
	}
	if err := e.read(); err != nil {
		return nil, err
	}
	if spec.SHA256 != "" && !strings.EqualFold(spec.SHA256, e.sha256) {
		return nil, fmt.Errorf("%s has the SHA-256 %s, not %s as %s says: install the right file or correct sha256",
			spec.Path, short(e.sha256), short(strings.ToLower(spec.SHA256)), spec.Source)
	}
	return e, nil
}

// OnlyOurs refuses a file that root or this user is going to obey, and that somebody else could have written or replaced, as sshd's
// StrictModes does: the file, its directory and all above it, both as it is named and where links lead to. Directories above top, which
// may be empty, are not looked at where the file is below it.
func OnlyOurs(path, top string) error {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for _, path := range []string{path, resolved} {
		for {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if err := ownedByUs(path, &st); err != nil {
				return err
			}
			if path == top || path == filepath.Dir(path) {
				break
			}
			path = filepath.Dir(path)
		}
	}
	return nil
}

// ownedByUs: in a directory with the sticky bit, as /tmp, nobody replaces what is not theirs.
func ownedByUs(path string, st *unix.Stat_t) error {
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could change what runs as root: chown root %s", path, st.Uid, path)
	}
	sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
	if st.Mode&0o022 != 0 && !sticky {
		return fmt.Errorf("%s can be written by others, who could change what runs as root: chmod go-w %s", path, path)
	}
	return nil
}

// read takes the checksum and looks at the kind of program.
func (e *executable) read() error {
	hash := sha256.New()
	var head bytes.Buffer
	if _, err := io.Copy(io.MultiWriter(hash, &limited{&head, 4}), e.file); err != nil {
		return fmt.Errorf("read %s: %w", e.path, err)
	}
	e.sha256 = hex.EncodeToString(hash.Sum(nil))
	e.script = bytes.HasPrefix(head.Bytes(), []byte("#!"))
	if !e.script && !bytes.Equal(head.Bytes(), []byte("\x7fELF")) {
		return fmt.Errorf("%s is not a program: its first bytes are neither ELF nor #! of a script", e.path)
	}
	return nil
}

// limited keeps the first bytes only.
type limited struct {
	to   *bytes.Buffer
	room int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.room)
	l.to.Write(p[:n])
	l.room -= n
	return len(p), nil
}

// short is enough of a checksum to tell it from another one.
func short(sum string) string {
	return sum[:min(len(sum), 12)]
}
