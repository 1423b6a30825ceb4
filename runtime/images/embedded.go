package images

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// ErrNotBuilt is returned by Open in an executable that was built without its images.
var ErrNotBuilt = errors.New("this executable was built without its images (pause, hello): build it with `make build`")

// Archive is the archive in the executable. Close it after use.
type Archive struct {
	io.ReadCloser                   // a zstd-compressed OCI archive
	Digests       map[string]string // by image name
}

// Open opens the embedded archive. It returns ErrNotBuilt when there is none.
func Open() (*Archive, error) {
	text, err := fs.ReadFile(embeddedFiles, embeddedDir+"/images.list")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotBuilt
	}
	if err != nil {
		return nil, err
	}
	digests, err := parseList(string(text))
	if err != nil {
		return nil, err
	}
	archive, err := embeddedFiles.Open(embeddedDir + "/images.tar.zst")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotBuilt
	}
	if err != nil {
		return nil, err
	}
	return &Archive{ReadCloser: archive, Digests: digests}, nil
}

// parseList reads lines of "<name> <digest>".
func parseList(text string) (map[string]string, error) {
	digests := map[string]string{}
	for line := range strings.Lines(text) {
		name, digest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || !strings.HasPrefix(digest, "sha256:") {
			return nil, fmt.Errorf("images.list: bad line %q", strings.TrimSpace(line))
		}
		digests[name] = digest
	}
	return digests, nil
}
