package manifests

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"kubelith.io/kubelith/base/atomicfile"
)

// idFile identifies the directory of manifests that it is in. A directory without it is a different directory: a late
// mount, a replaced disk, another server's. What was applied from a directory is deleted only when its file is removed
// from that directory.
const idFile = ".directory"

// directoryID returns the identity of a directory, and creates one if there is none; made reports that it did. A
// directory that cannot be written has no identity.
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
	if err := atomicfile.Write(path, []byte(id+"\n")); err != nil {
		return "", false
	}
	return id, true
}
