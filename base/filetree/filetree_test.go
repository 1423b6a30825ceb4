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
	}
}

// What a run leaves that crashed after it had placed the source is replaced.
func TestReplaceAgain(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "kubelith")
	if err != nil {
		t.Skip("no other disk: ", err)
	}
	defer os.RemoveAll(shm)
	dir := t.TempDir()
	if probe := filepath.Join(shm, "probe"); os.Mkdir(probe, 0o700) == nil && os.Rename(probe, filepath.Join(dir, "probe")) == nil {
		t.Skip("temporary files are on the same disk")
	}
	place, source := filepath.Join(shm, "db", "member"), filepath.Join(dir, "source")
	for range 2 {
		write(t, filepath.Join(source, "new"))
		write(t, filepath.Join(source+".placed", "new"))
		if err := Replace(place, source); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(place); err != nil || len(entries) != 1 || entries[0].Name() != "new" {
		t.Errorf("it has %v, %v", entries, err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
}
