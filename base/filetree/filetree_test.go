package filetree

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A place may be a disk, or on one.
func TestReplaceOnADisk(t *testing.T) {
	for _, name := range []string{"disk", "disk/db"} {
		dir := t.TempDir()
		disk, place, source := filepath.Join(dir, "disk"), filepath.Join(dir, name), filepath.Join(dir, "source")
		if err := os.Mkdir(disk, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", disk, "tmpfs", 0, ""); err != nil {
			t.Skip("nothing can be mounted here: ", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }) // before TempDir's own cleanup
		for _, path := range []string{filepath.Join(place, "member", "new"), filepath.Join(source, "member", "old")} {
			write(t, path)
		}
		if err := Replace(place, source); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		entries, err := os.ReadDir(filepath.Join(place, "member"))
		if err != nil || len(entries) != 1 || entries[0].Name() != "old" {
			t.Errorf("%s has %v, %v", name, entries, err)
		}
		if _, err := os.Stat(source); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the source is there: %v", name, err)
		}
		if err := Remove(place); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(disk); len(left) > 0 {
			t.Errorf("%s: left are %v", name, left)
		}
	}
}

// A place may be a link to a directory, on this disk or on another: the link stays.
func TestReplaceThroughALink(t *testing.T) {
	for name, to := range links(t) {
		dir := t.TempDir()
		place, source := filepath.Join(dir, "db"), filepath.Join(dir, "source")
		write(t, filepath.Join(to, "old"))
		write(t, filepath.Join(source, "new"))
		if err := os.Symlink(to, place); err != nil {
			t.Fatal(err)
		}
		if err := Replace(place, source); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if entries, err := os.ReadDir(to); err != nil || len(entries) != 1 || entries[0].Name() != "new" {
			t.Errorf("%s has %v, %v", name, entries, err)
		}
		copied := filepath.Join(dir, "copied")
		if err := Copy(place, copied); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Lstat(filepath.Join(copied, "new")); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: the copy has %v, %v", name, info, err)
		}
		if err := Remove(place); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the directory is there: %v", name, err)
		}
	}
}

// links are directories on the disk of the test's, and on another.
func links(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"same disk": filepath.Join(t.TempDir(), "db")}
	if shm, err := os.MkdirTemp("/dev/shm", "kubelith"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(shm) })
		all["other disk"] = filepath.Join(shm, "db")
	}
	return all
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
}
