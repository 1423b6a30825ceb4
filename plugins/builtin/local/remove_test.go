package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// TestRemoveRefusesMounts: a volume with a mount in it stays, whole; one whose name only begins alike is no obstacle.
func TestRemoveRefusesMounts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		target string // below the store's directory
		err    error
	}{
		{"in the data", "volumes/v/data/share", errInUse},
		{"deep down", "volumes/v/data/a/b/c", errInUse},
		{"beside the data", "volumes/v/other", errInUse},
		{"in another volume", "volumes/v2/data/share", nil},
		{"nowhere", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore(t, 0)
			v := create(t, s, "v", filesystem, 4096)
			file := filepath.Join(s.file(v, dataDir), "file")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			s.mounts = func() ([]*mountinfo.Info, error) {
				return []*mountinfo.Info{{Root: "/", Mountpoint: "/", FSType: "ext4"}, {Root: "/", Mountpoint: s.path(tc.target), FSType: "nfs"}}, nil
			}
			if err := s.remove(t.Context(), "v"); !errors.Is(err, tc.err) {
				t.Fatalf("remove: %v, want %v", err, tc.err)
			}
			if _, err := os.Stat(file); tc.err != nil && err != nil {
				t.Errorf("refused, and yet: %v", err)
			}
		})
	}
}

// TestRemoveTree: everything goes, a symbolic link as a link.
func TestRemoveTree(t *testing.T) {
	dir := t.TempDir()
	tree, outside := filepath.Join(dir, "tree"), filepath.Join(dir, "outside")
	for _, d := range []string{outside, filepath.Join(tree, "a/b/c"), filepath.Join(tree, "many")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3000 { // more than are read at once
		if err := os.WriteFile(filepath.Join(tree, "many", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kept := filepath.Join(outside, "file")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"to-dir": outside, "a/to-file": kept, "a/b/up": "../../..", "dangling": "none"} {
		if err := os.Symlink(target, filepath.Join(tree, link)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := removeTree(tree); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(tree); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree is there: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// TestRemoveDeepTree: a pod may make directories as deep as its files last. A pass has few of them open, so that they
// cost neither descriptors nor memory.
func TestRemoveDeepTree(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "tree")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(root, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 255)
	for range 3000 {
		if err := errors.Join(unix.Mkdirat(at, name, 0o700), unix.Mkdirat(at, "moved-1", 0o700)); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	unix.Close(at)
	parent, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	all := tree{}
	if err := all.remove(parent, "tree", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree is there: %v", err)
	}
	if least := 3000/maxDepth - 1; all.moved < least {
		t.Errorf("%d directories were moved up, want at least %d", all.moved, least)
	}
}

// TestRemoveDeepMount: what is too deep, and cannot be moved up either, ends the attempt with an error.
func TestRemoveDeepMount(t *testing.T) {
	for _, depth := range []int{maxDepth + 1, maxDepth + 6} { // the mount, and a directory above it
		root := filepath.Join(t.TempDir(), "tree")
		mount := filepath.Join(root, strings.Repeat("d/", depth))
		if err := os.MkdirAll(mount, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", mount, "tmpfs", 0, ""); err != nil {
			t.Skip("nothing can be mounted here: ", err)
		}
		t.Cleanup(func() { // before TempDir's own cleanup
			moved, _ := filepath.Glob(filepath.Join(root, "moved-*", strings.Repeat("d/", 5)))
			for _, path := range append(moved, mount) {
				_ = unix.Unmount(path, unix.MNT_DETACH)
			}
		})
		done := make(chan error, 1)
		go func() { done <- removeTree(root) }()
		select {
		case err := <-done:
			if !errors.Is(err, errInUse) {
				t.Errorf("depth %d: %v, want %v", depth, err, errInUse)
			}
		case <-time.After(time.Minute):
			t.Fatalf("depth %d: it goes on for ever", depth)
		}
	}
}

// TestRemoveStopsAtMounts: what the check of the mounts missed is not emptied either: a mount of another file system, a
// directory of the same one, a file.
func TestRemoveStopsAtMounts(t *testing.T) {
	h := newHost(t)
	n, _ := h.node()
	share := h.target("share")
	kept := filepath.Join(share, "kept")
	if err := os.Mkdir(share, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, source, fstype string }{
		{"tmpfs", "none", "tmpfs"}, {"directory", share, ""}, {"file", kept, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tree := filepath.Join(n.store.path("trash"), tc.name)
			const mountPoint = "data/deep/mount"
			// Built elsewhere: the sweep of the start may still run, and would remove the tree before anything is
			// mounted in it.
			before := h.target("before-" + tc.name)
			if err := makeParent(filepath.Join(before, mountPoint), tc.name == "file"); err != nil {
				t.Fatal(err)
			}
			flags := uintptr(unix.MS_BIND)
			if tc.fstype != "" {
				flags = 0
			}
			if err := unix.Mount(tc.source, filepath.Join(before, mountPoint), tc.fstype, flags, ""); err != nil {
				t.Fatal(err)
			}
			inside := filepath.Join(tree, mountPoint)
			witness := kept
			if tc.fstype != "" {
				witness = filepath.Join(inside, "kept")
				if err := os.WriteFile(filepath.Join(before, mountPoint, "kept"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Rename(before, tree); err != nil {
				t.Fatal(err)
			}
			if err := removeTree(tree); err == nil {
				t.Error("removed although something is mounted in it")
			}
			n.store.sweep() // as the next start does
			if _, err := os.Stat(witness); err != nil {
				t.Errorf("what is mounted was emptied: %v", err)
			}
			if err := unix.Unmount(inside, 0); err != nil {
				t.Fatal(err)
			}
			n.store.sweep()
			if _, err := os.Stat(tree); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it stays after the mount is gone: %v", err)
			}
		})
	}
}

// makeParent creates what a test mounts at.
func makeParent(path string, file bool) error {
	if !file {
		return os.MkdirAll(path, 0o700)
	}
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600))
}

// TestDeleteWithNestedMount: a volume in which a pod has left a mount is not deleted.
func TestDeleteWithNestedMount(t *testing.T) {
	h := newHost(t)
	h.make(t, "v", filesystem)
	n, _ := h.node()
	inside := filepath.Join(n.store.volumeDir("v"), dataDir, "share")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", inside, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := n.store.remove(t.Context(), "v"); !errors.Is(err, errInUse) {
		t.Errorf("remove: %v", err)
	}
	if err := unix.Unmount(inside, 0); err != nil {
		t.Fatal(err)
	}
	if err := n.store.remove(t.Context(), "v"); err != nil {
		t.Error(err)
	}
}
