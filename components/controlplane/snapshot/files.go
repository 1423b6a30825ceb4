package snapshot

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"kubelith.io/kubelith/base/pki"
)

// Suffix of the files.
const Suffix = ".snapshot"

// File is a snapshot in a directory, in a store, or in both.
type File struct {
	// Path in the directory, and URL in the store; one of them may be empty.
	Path  string `json:"path,omitempty"`
	Store string `json:"store,omitempty"`
	// Bytes is its size.
	Bytes int64 `json:"bytes"`
	Header
	// Fault is why its header cannot be read.
	Fault string `json:"fault,omitempty"`
}

// Name is the base name without Suffix.
func (f File) Name() string {
	return strings.TrimSuffix(path.Base(cmp.Or(filepath.ToSlash(f.Path), f.Store)), Suffix)
}

// isOf reports whether it has this name and is of this node. What a node called web-2 saves begins with the name of the
// node web, too.
func (f File) isOf(name, node string) bool {
	return (f.Fault != "" || f.Settings.NodeName == node) && strings.HasPrefix(f.Name(), name+"-"+node+"-")
}

func fileOf(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	out := File{Path: path, Bytes: info.Size()}
	if out.Header, err = ReadHeader(f); err != nil {
		out.Fault = err.Error()
	}
	return out, nil
}

// List returns the snapshots of a directory, the newest first. A directory that does not exist has none.
func List(dir string) ([]File, error) {
	paths, err := filepath.Glob(filepath.Join(escapeGlob(dir), "*"+Suffix))
	if err != nil {
		return nil, err
	}
	var all []File
	for _, path := range paths {
		f, err := fileOf(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	newestFirst(all)
	return all, nil
}

func newestFirst(all []File) {
	slices.SortStableFunc(all, func(a, b File) int { return b.Created.Compare(a.Created) })
}

// escapeGlob makes a path match itself.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// Prune deletes all but the newest keep scheduled snapshots of a node. Those of other clusters stay.
func Prune(dir, dataDir, node string, keep int) (deleted []File, err error) {
	cluster, err := clusterOf(pki.Dir(dataDir))
	if err != nil {
		return nil, err
	}
	return prune(dir, Scheduled, node, cluster, keep, "")
}

// prune deletes all but the newest keep snapshots of this name and node in a cluster, files that cannot be read among
// them. Those of other clusters stay: the directory may have them from before a reset, or be shared. The one in the
// file saved stays and counts, whatever the clock was when the others were saved; saved may be empty.
func prune(dir, name, node, cluster string, keep int, saved string) (deleted []File, err error) {
	all, err := List(dir)
	if err != nil {
		return nil, err
	}
	if saved != "" {
		keep--
	}
	all = slices.DeleteFunc(all, func(f File) bool { return f.Path == saved || f.Fault == "" && f.Cluster != cluster })
	_, rest := kinds{name: keep}.limited(all, node)
	for _, f := range rest {
		if err := os.Remove(f.Path); err != nil {
			return deleted, err
		}
		deleted = append(deleted, f)
	}
	return deleted, nil
}
