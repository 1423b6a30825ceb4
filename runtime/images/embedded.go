package images

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// ErrNotBuilt is returned by Run in an executable that was built without its images.
var ErrNotBuilt = errors.New("this executable was built without its images (pause, hello): build it with `make build`")

// embedded is the archive in the executable and what it holds.
type embedded struct {
	archive io.ReadCloser
	digests map[string]string // by image name
}

func openEmbedded() (*embedded, error) {
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
	return &embedded{archive: archive, digests: digests}, nil
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
