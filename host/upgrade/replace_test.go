package upgrade

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
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if err := replace(place, source); err != nil {
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
