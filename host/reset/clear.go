package reset

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubelith.io/kubelith/base/datadir"
)

// clearKubelet removes what the kubelet has created.
func (r *Reset) clearKubelet() error {
	return r.clear(r.opts.KubeletRootDir, datadir.MadeByKubelet(), []string{datadir.KubeletMark})
}

// clearData removes what the node has created in its data directory. Disks of volumes are emptied one by one.
func (r *Reset) clearData() error {
	return r.clear(r.opts.DataDir, append([]string{volumes + "/*"}, datadir.Made()...), datadir.Identity())
}

// clear removes what we have created in a directory. The files that identify it as ours go last and only when the rest
// has gone, then the directory if it is empty. The user's files stay and are named.
func (r *Reset) clear(dir string, made, identity []string) error {
	for _, names := range [][]string{made, identity} {
		var errs []error
		for _, name := range names {
			for _, path := range r.files.Glob(filepath.Join(dir, name)) {
				errs = append(errs, r.remove(path))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	// The deepest first. Only empty ones go, and none that a user has moved elsewhere with a link.
	inside := append(datadir.Dropped(), "server", "agent", "plugins")
	for _, name := range inside {
		if path := filepath.Join(dir, name); !r.files.IsLink(path) {
			os.Remove(r.files.Path(path))
		}
	}
	if r.linked[dir] || os.Remove(r.files.Path(dir)) != nil {
		left := r.others(dir, nil)
		if len(left) == 0 {
			r.printf("emptied %s, which is a mount point or a link", dir)
			return nil
		}
		r.printf("left in %s: %s", dir, strings.Join(left, ", "))
		return nil
	}
	r.printf("removed %s", dir)
	return nil
}

// others returns the names in a directory that are not ours, on two levels where the first is ours; at most five.
func (r *Reset) others(dir string, made []string) []string {
	parents := map[string]bool{}
	for _, name := range append(datadir.Made(), datadir.Dropped()...) {
		parents[filepath.Dir(name)] = true
	}
	isMade := func(name string) bool {
		return slices.ContainsFunc(made, func(pattern string) bool { ok, _ := filepath.Match(pattern, name); return ok })
	}
	var out []string
	var look func(below string)
	look = func(below string) {
		for _, entry := range r.files.Names(filepath.Join(dir, below)) {
			name := filepath.Join(below, entry)
			switch {
			case isMade(name):
			case below == "" && parents[name]:
				look(name)
			case slices.Contains(datadir.Dropped(), name) && !r.files.IsLink(filepath.Join(dir, name)) &&
				!slices.ContainsFunc(r.files.Names(filepath.Join(dir, name)), func(entry string) bool { return !isMade(filepath.Join(name, entry)) }):
			default:
				out = append(out, name)
			}
		}
	}
	look("")
	if len(out) > 5 {
		out = append(out[:5], "...")
	}
	return out
}
