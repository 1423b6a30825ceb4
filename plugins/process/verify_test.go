package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckOwnership: a user who may write to any directory on the path to a file, or owns one, decides what the file
// is.
func TestCheckOwnership(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, root string) error
		want   string // empty: it is ours
	}{
		"as it is":           {func(*testing.T, string) error { return nil }, ""},
		"the file":           {func(_ *testing.T, root string) error { return os.Chmod(root+"/a/b/file", 0o757) }, "/a/b/file can be written by others"},
		"its directory":      {func(_ *testing.T, root string) error { return os.Chmod(root+"/a/b", 0o775) }, "/a/b can be written by others"},
		"above it":           {func(_ *testing.T, root string) error { return os.Chmod(root+"/a", 0o777) }, "/a can be written by others"},
		"sticky above it":    {func(_ *testing.T, root string) error { return os.Chmod(root+"/a", 0o777|os.ModeSticky) }, ""},
		"another's above it": {func(t *testing.T, root string) error { return giveAway(t, root+"/a") }, "/a belongs to user 12345"},
		"where a link leads": {func(_ *testing.T, root string) error {
			if err := os.Mkdir(root+"/open", 0o700); err != nil {
				return err
			}
			if err := os.Rename(root+"/a/b", root+"/open/b"); err != nil {
				return err
			}
			if err := os.Chmod(root+"/open", 0o777); err != nil {
				return err
			}
			return os.Symlink(root+"/open/b", root+"/a/b")
		}, "/open can be written by others"},
		"where the link is": {func(_ *testing.T, root string) error {
			if err := os.Mkdir(root+"/real", 0o700); err != nil {
				return err
			}
			if err := os.Rename(root+"/a/b", root+"/real/b"); err != nil {
				return err
			}
			if err := os.Symlink(root+"/real/b", root+"/a/b"); err != nil {
				return err
			}
			return os.Chmod(root+"/a", 0o777)
		}, "/a can be written by others"},
		"gone": {func(_ *testing.T, root string) error { return os.Remove(root + "/a/b/file") }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, "a", "b", "file")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, nil, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tc.change(t, root); err != nil {
				t.Fatal(err)
			}
			if err := CheckOwnership(file, ""); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	// Directories above the data directory need not meet the rules for what is in it.
	root := t.TempDir()
	inside := filepath.Join(root, "data", "plugins")
	if err := os.MkdirAll(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := CheckOwnership(inside, filepath.Join(root, "data")); err != nil {
		t.Error(err)
	}
	if err := CheckOwnership(inside, ""); err == nil {
		t.Error("all directories count where none is trusted")
	}
}

func giveAway(t *testing.T, path string) error {
	if os.Geteuid() != 0 {
		t.Skip("only root gives a directory away")
	}
	return os.Chown(path, 12345, -1)
}
