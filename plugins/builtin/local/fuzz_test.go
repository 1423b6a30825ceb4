package local

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// FuzzMounts reads a mountinfo as the kernel, or something in its place, writes it.
func FuzzMounts(f *testing.F) {
	f.Add([]byte("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"))
	f.Add([]byte("36 35 98:0 /a\\040b /mnt2 ro - ext3 none rw\n"))
	f.Add([]byte("36 35 98 / / -\n"))
	f.Add([]byte("- - - - - - - - - -\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		mounts, err := mountinfo.GetMountsFromReader(bytes.NewReader(content), nil)
		if lines := bytes.Count(content, []byte("\n")) + 1; err == nil && len(mounts) > lines {
			t.Errorf("%d mounts in %d lines", len(mounts), lines)
		}
		for _, m := range mounts {
			if mountAt(mounts, m.Mountpoint) == nil {
				t.Errorf("nothing is mounted at %q", m.Mountpoint)
			}
			readOnly(m)
		}
	})
}

// FuzzReadVolume reads what is stored about a volume: nothing that names another volume, or no size, is taken for one.
func FuzzReadVolume(f *testing.F) {
	f.Add([]byte(`{"version":1,"id":"pvc-1","size":1048576,"mode":"filesystem"}`))
	f.Add([]byte(`{"version":1,"id":"../pvc-1","size":-1,"mode":"block"}`))
	f.Add([]byte(`{"version":9}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := filepath.Join(t.TempDir(), "pvc-1")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, metaFile), content, 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := readVolume(dir)
		if err == nil && (v.ID != "pvc-1" || v.Size <= 0) {
			t.Errorf("%q is taken for a volume: %+v", content, v)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("the error has several lines: %v", err)
		}
	})
}
