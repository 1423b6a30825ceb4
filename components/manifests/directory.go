package manifests

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"kubelith.io/kubelith/components/pki"
)

// idFile is in the directory of manifests and names it. A directory without one is another directory: a mount that is late, a disk
// that was replaced, another server's. What was applied from a directory is deleted only by what is no longer in it.
const idFile = ".directory"

// directoryID returns the identity of a directory, which it gives to one that has none. made says that it did. A directory that cannot
// be written has no identity.
func directoryID(dir string) (id string, made bool) {
	path := filepath.Join(dir, idFile)
	text, err := os.ReadFile(path)
	if id = strings.TrimSpace(string(text)); err == nil && id != "" {
		return id, false
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	id = rand.Text()
	if err := pki.WriteFile(path, []byte(id+"\n")); err != nil {
		return "", false
	}
	return id, true
}
