package manifests

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// filePrefix begins the names of the parents of files that are not embedded.
const filePrefix = "manifest-"

// maxFile is the maximum size of a file in bytes. The API accepts objects of some 1.5 MB.
const maxFile = 16 << 20

// file is one source of objects.
type file struct {
	name    string // shown to the user
	parent  string // the name of the ConfigMap that stands for it
	content []byte
	err     error // the reason why it could not be read
	yields  bool  // an object that is also in another file belongs to that file
}

func (f file) hash() [sha256.Size]byte { return sha256.Sum256(f.content) }

// isManifest reports whether a file with this name is a manifest. Hidden files belong to editors and to copies in
// progress.
func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}

// directory reads all manifests below dir, in the order of their paths. watch is called for dir and each directory
// below it, before its files are read, so that later changes are noticed. A file that cannot be read is returned with
// the reason.
func directory(dir string, watch func(string)) ([]file, error) {
	var files []file
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && p != dir && errors.Is(err, fs.ErrNotExist):
			return nil // it was removed meanwhile; the watch reports that
		case err != nil:
			return err
		case d.IsDir() && p != dir && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir():
			watch(p)
			return nil
		case !isManifest(d.Name()):
			return nil
		}
		relative, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		f := file{name: p, parent: parentName(filePrefix, relative)}
		f.content, f.err = readFile(p)
		files = append(files, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the manifests: %w", err)
	}
	return files, nil
}

func readFile(p string) ([]byte, error) {
	info, err := os.Stat(p)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("has %d MiB: split it into files of at most %d MiB", info.Size()>>20, maxFile>>20)
	}
	return os.ReadFile(p)
}

// embedded reads the manifests of the executable. The administrator's files may have the same objects.
func embedded(from fs.FS) ([]file, error) {
	names, err := fs.Glob(from, "*.yaml")
	if err != nil {
		return nil, err
	}
	var files []file
	for _, name := range names {
		f := file{name: "embedded " + name, parent: parentName("embedded-", name), yields: true}
		if f.content, err = fs.ReadFile(from, name); err != nil {
			return nil, fmt.Errorf("read the embedded manifests: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

// parentName converts a path into the name of an object. It replaces invalid characters, and adds a hash so that names
// stay different.
func parentName(prefix, relative string) string {
	name := prefix + relative
	if len(name) <= 200 && len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return fmt.Sprintf("%.200s-%.4x", clean, sha256.Sum256([]byte(relative)))
}
