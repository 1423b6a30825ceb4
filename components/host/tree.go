package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tree reads the host's files; tests put a directory in the place of /.
type tree struct{ root string }

func (t tree) path(p string) string { return filepath.Join(t.root+"/", p) }

func (t tree) exists(p string) bool {
	_, err := os.Lstat(t.path(p))
	return err == nil
}

// text is a file's content without white space around it; empty when it cannot be read.
func (t tree) text(p string) string {
	b, err := os.ReadFile(t.path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// names are a directory's entries; none when it cannot be read.
func (t tree) names(p string) []string {
	entries, err := os.ReadDir(t.path(p))
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// glob are the paths that match a pattern, in our form.
func (t tree) glob(pattern string) []string {
	found, _ := filepath.Glob(t.path(pattern)) // our patterns are well formed
	for i, path := range found {
		found[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(path, t.root), "/")
	}
	return found
}

func (t tree) isLink(p string) bool {
	info, err := os.Lstat(t.path(p))
	return err == nil && info.Mode()&os.ModeSymlink != 0
}

// directories are a directory and all directories below it; none when it does not exist.
func (t tree) directories(p string) []string {
	var out []string
	_ = filepath.WalkDir(t.path(p), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() { // others have gone meanwhile
			out = append(out, "/"+strings.TrimPrefix(strings.TrimPrefix(path, t.root), "/"))
		}
		return nil
	})
	return out
}

// empty removes what is in a directory.
func (t tree) empty(p string) error {
	var errs []error
	for _, name := range t.names(p) {
		errs = append(errs, os.RemoveAll(filepath.Join(t.path(p), name)))
	}
	return errors.Join(errs...)
}

// below tells whether a path is the directory or in it.
func below(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
