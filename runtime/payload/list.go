package payload

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// list is the content of the archive, so that an unpacked directory can be checked without reading the archive. Its
// first line is the archive's digest ("sha256 <hex>"); each other line is "<size in bytes> <name>", followed by module
// and version if the program's source is patched.
type list struct {
	digest string
	files  []file
}

type file struct {
	name    string
	size    int64
	patched string // module and version
}

// hash names the directory of this version.
func (l *list) hash() string { return l.digest[:16] }

func parseList(text string) (*list, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	digest, ok := strings.CutPrefix(lines[0], "sha256 ")
	if !ok || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("payload.list: first line %q is not a digest", lines[0])
	}
	l := &list{digest: digest}
	for _, line := range lines[1:] {
		size, name, ok := strings.Cut(line, " ")
		name, patched, _ := strings.Cut(name, " ")
		n, err := strconv.ParseInt(size, 10, 64)
		if !ok || err != nil || n < 0 || name == "" || name != filepath.Base(name) || name[0] == '.' {
			return nil, fmt.Errorf("payload.list: bad line %q", line)
		}
		l.files = append(l.files, file{name: name, size: n, patched: patched})
	}
	if len(l.files) == 0 {
		return nil, fmt.Errorf("payload.list: no files")
	}
	return l, nil
}
