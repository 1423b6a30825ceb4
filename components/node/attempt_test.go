package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A refused start removes the files and directories that it has created, and no others.
func TestForget(t *testing.T) {
	for name, c := range map[string]struct {
		before, after []string // files
		left          []string
	}{
		"new": {nil, []string{"d/lock", "d/version", "run/data-dir"}, nil},
		"not empty": {[]string{"d/agent/images/a.tar", "run/x"}, []string{"d/lock", "d/version", "run/data-dir"},
			[]string{"d", "d/agent", "d/agent/images", "d/agent/images/a.tar", "run", "run/x"}},
		"used":         {[]string{"d/version", "d/lock", "run/data-dir"}, nil, []string{"d", "d/lock", "d/version", "run", "run/data-dir"}},
		"not our file": {nil, []string{"d/lock", "d/other"}, []string{"d", "d/other"}},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			write := func(path string) {
				t.Helper()
				path = filepath.Join(base, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range c.before {
				write(f)
			}
			undo := forget(filepath.Join(base, "d"), filepath.Join(base, "d", "lock"), filepath.Join(base, "d", "version"),
				filepath.Join(base, "run", "data-dir"))
			for _, f := range c.after {
				write(f)
			}
			undo()
			var left []string
			err := filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
				if rel, _ := filepath.Rel(base, path); rel != "." {
					left = append(left, rel)
				}
				return err
			})
			if err != nil || !slices.Equal(left, c.left) {
				t.Errorf("left %q (%v), want %q", left, err, c.left)
			}
		})
	}
}
