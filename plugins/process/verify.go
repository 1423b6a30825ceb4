package process

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

// Executable is a verified plugin program. The file is open, so that what was checked is started, even if the path
// leads elsewhere by then.
type Executable struct {
	ID     FileID
	SHA256 string // hex

	file   *os.File
	path   string
	script bool // has an interpreter, which opens the path itself
}

// Close closes the file. Start does it for the executables that it gets.
func (e *Executable) Close() error { return e.file.Close() }

// FileID identifies the content of a file without reading it: every change of content or mode changes ctime.
type FileID struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func idOf(st *unix.Stat_t) FileID {
	return FileID{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
}

// StatID returns the FileID of a path; zero if there is no such file.
func StatID(path string) FileID {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return FileID{}
	}
	return idOf(&st)
}

// Verify opens the program of a spec if it may be started: a regular file with the wanted checksum that only root or
// this user can have written or put there. Directories above dataDir are trusted: a user who owns those has the
// cluster's CA. The error says what to do.
func Verify(spec *Spec, dataDir string) (_ *Executable, err error) {
	// O_NONBLOCK: opening a fifo would wait for a writer.
	fd, err := unix.Open(spec.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist: copy it there, or remove the plugin from %s", spec.Path, spec.Source)
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened: %w", spec.Path, err)
	}
	e := &Executable{file: os.NewFile(uintptr(fd), spec.Path), path: spec.Path}
	defer func() {
		if err != nil {
			e.file.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", spec.Path, err)
	}
	e.ID = idOf(&st)
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is not a regular file: name the program itself", spec.Path)
	case st.Mode&0o111 == 0:
		return nil, fmt.Errorf("%s is not executable: chmod +x it", spec.Path)
	}
	if err := checkOwner(spec.Path, &st); err != nil {
		return nil, err
	}
	if err := CheckOwnership(spec.Path, dataDir); err != nil {
		return nil, err
	}
	if err := e.read(); err != nil {
		return nil, err
	}
	if spec.SHA256 != "" && !strings.EqualFold(spec.SHA256, e.SHA256) {
		return nil, fmt.Errorf("%s has the SHA-256 %s, but %[4]s requires %[3]s: install the right file or correct sha256",
			spec.Path, ShortSHA256(e.SHA256), ShortSHA256(strings.ToLower(spec.SHA256)), spec.Source)
	}
	return e, nil
}

// CheckOwnership refuses a file that others than root and this user could have written or replaced, as sshd's
// StrictModes does. It checks the file, its directory and all directories above, both as named and where links lead to.
// For a file below top, it does not check directories above top; top may be empty.
func CheckOwnership(path, top string) error {
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
			if err := checkOwner(path, &st); err != nil {
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

// checkOwner refuses what another user owns or may write to. A directory with the sticky bit, such as /tmp, is fine:
// users can only replace their own files there.
func checkOwner(path string, st *unix.Stat_t) error {
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could change what runs as root: chown root %s", path, st.Uid, path)
	}
	sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
	if st.Mode&0o022 != 0 && !sticky {
		return fmt.Errorf("%s can be written by others, who could change what runs as root: chmod go-w %s", path, path)
	}
	return nil
}

// read computes the checksum and finds the type of the program.
func (e *Executable) read() error {
	hash := sha256.New()
	var head bytes.Buffer
	if _, err := io.Copy(io.MultiWriter(hash, &limited{&head, 4}), e.file); err != nil {
		return fmt.Errorf("read %s: %w", e.path, err)
	}
	e.SHA256 = hex.EncodeToString(hash.Sum(nil))
	e.script = bytes.HasPrefix(head.Bytes(), []byte("#!"))
	if !e.script && !bytes.Equal(head.Bytes(), []byte("\x7fELF")) {
		return fmt.Errorf("%s is not a program: its first bytes are neither ELF nor #! of a script", e.path)
	}
	return nil
}

// limited keeps the first bytes and discards the rest.
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

// ShortSHA256 returns the part of a checksum that log lines and errors show.
func ShortSHA256(sum string) string {
	return sum[:min(len(sum), 12)]
}
