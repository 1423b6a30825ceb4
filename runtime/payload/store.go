package payload

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"kubelith.io/kubelith/base/atomicfile"
)

// store is the directory of unpacked payloads: <dir>/<hash>/bin, and <dir>/current pointing to one of them.
type store struct {
	dir  string
	proc string // where /proc is mounted
}

// install ensures that the list's version is unpacked and current, and returns <dir>/current/bin.
func (s store) install(archive io.Reader, l *list) (string, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", err
	}
	target := filepath.Join(s.dir, l.hash())
	if !complete(target, l) {
		if err := s.unpack(archive, l, target); err != nil {
			return "", err
		}
	}
	if err := s.setCurrent(l.hash()); err != nil {
		return "", err
	}
	if err := s.prune(l.hash()); err != nil {
		return "", err
	}
	return filepath.Join(s.dir, "current", "bin"), nil
}

// complete reports whether the directory holds every program with its size and mode. It guards against removed or
// truncated files, not against an attacker, who would already have to be root.
func complete(dir string, l *list) bool {
	for _, f := range l.files {
		info, err := os.Lstat(filepath.Join(dir, "bin", f.name))
		if err != nil || !info.Mode().IsRegular() || info.Size() != f.size || info.Mode().Perm()&0o111 != 0o111 {
			return false
		}
	}
	return true
}

// unpack writes the archive into a temporary directory, to disk, and then gives it the name target.
func (s store) unpack(archive io.Reader, l *list, target string) error {
	temp, err := os.MkdirTemp(s.dir, ".unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp) // after the rename there is nothing left to remove
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	bin := filepath.Join(temp, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	if err := extract(archive, l.digest, bin); err != nil {
		return err
	}
	if !complete(temp, l) {
		return errors.New("the embedded archive does not match its list: build again")
	}
	if err := errors.Join(atomicfile.SyncDir(bin), atomicfile.SyncDir(temp)); err != nil {
		return err
	}
	if _, err := os.Lstat(target); err == nil {
		// A damaged version: move it away rather than delete it, since its shims may be running.
		damaged, err := os.MkdirTemp(s.dir, ".damaged-")
		if err != nil {
			return err
		}
		if err := os.Rename(target, filepath.Join(damaged, "old")); err != nil {
			return err
		}
	}
	if err := os.Rename(temp, target); err != nil {
		return err
	}
	return atomicfile.SyncDir(s.dir)
}

// extract writes the files of a tar+zstd archive into bin and checks the archive's SHA-256.
func extract(archive io.Reader, digest, bin string) error {
	sum := sha256.New()
	// One decoder goroutine and small buffers: this runs once per upgrade, in a process that must stay small.
	zr, err := zstd.NewReader(io.TeeReader(archive, sum), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	defer zr.Close()
	tr := tar.NewReader(zr)
	for {
		header, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the embedded archive: %w", err)
		}
		if header.Typeflag != tar.TypeReg || header.Name != filepath.Base(header.Name) {
			return fmt.Errorf("the embedded archive contains %q, which is not a plain file name", header.Name)
		}
		if err := writeProgram(filepath.Join(bin, header.Name), tr); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, zr); err != nil { // to the end, so that the sum covers all of it
		return fmt.Errorf("read the embedded archive: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		return fmt.Errorf("the embedded archive is damaged (sha256 %s, want %s): install the executable again", got, digest)
	}
	return nil
}

func writeProgram(path string, content io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Chmod(0o755); err != nil { // whatever the umask is
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// setCurrent points the link `current` to the version, atomically.
func (s store) setCurrent(hash string) error {
	link := filepath.Join(s.dir, "current")
	if old, err := os.Readlink(link); err == nil && old == hash {
		return nil
	}
	temp := filepath.Join(s.dir, ".current")
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(hash, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, link); err != nil {
		return err
	}
	return atomicfile.SyncDir(s.dir)
}

// prune removes all versions except keep and those that running processes execute.
func (s store) prune(keep string) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var used map[string]bool
	for _, e := range entries {
		if e.Name() == keep || e.Name() == "current" {
			continue
		}
		if used == nil {
			if used, err = s.executed(); err != nil {
				return err
			}
		}
		if used[e.Name()] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// executed returns the names of the entries of the store that hold the executable of a running process.
func (s store) executed() (map[string]bool, error) {
	dir, err := filepath.EvalSymlinks(s.dir) // the kernel reports paths without symbolic links
	if err != nil {
		return nil, err
	}
	exes, err := filepath.Glob(filepath.Join(s.proc, "[0-9]*", "exe"))
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, exe := range exes {
		path, err := os.Readlink(exe)
		if err != nil {
			continue // a kernel thread, or a process that has just ended
		}
		if rest, ok := strings.CutPrefix(path, dir+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			used[name] = true
		}
	}
	return used, nil
}
