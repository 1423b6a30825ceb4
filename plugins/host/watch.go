package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
)

const (
	settleFor = 300 * time.Millisecond // without further changes before files are read: a copy takes time
	rescan    = time.Minute            // how often files are read without any event
)

// kindDir returns the plugins directory of a kind, where the operator puts executables.
func (h *Host) kindDir(kind plugins.Kind) string {
	return filepath.Join(h.opts.DataDir, "plugins", string(kind))
}

// directorySpecs returns the plugins in the plugins directories, sorted by name. Hidden files belong to editors and
// copies under way. The plugins of a directory that cannot be read stay: without them, requests would pass unchecked.
func (h *Host) directorySpecs(before []*plugin) []*Spec {
	var out []*Spec
	for _, kind := range plugins.Kinds {
		dir := h.kindDir(kind)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // Run creates it
			h.ignore(fmt.Sprintf("changes of the plugins in %s are ignored: %v", dir, err))
			for _, p := range before {
				if spec := p.spec.Load(); spec.Source == dir {
					out = append(out, spec)
				}
			}
			continue
		}
		for _, e := range entries {
			if e.IsDir() || strings.HasPrefix(e.Name(), ".") || strings.HasSuffix(e.Name(), "~") {
				continue
			}
			out = append(out, &Spec{Spec: process.Spec{Name: e.Name(), Kind: kind, Path: filepath.Join(dir, e.Name()), Source: dir}})
		}
	}
	slices.SortStableFunc(out, func(a, b *Spec) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// watch calls refresh when a file has changed, and each minute.
func (h *Host) watch(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		h.log.WithError(err).Warnf("changes of plugins are noticed within %v only: raise fs.inotify.max_user_instances", rescan)
		watcher = &fsnotify.Watcher{} // has no events
	} else {
		defer watcher.Close()
	}
	w := &watched{Watcher: watcher}
	settled := time.NewTimer(0) // at once: for changes before the watch began
	defer settled.Stop()
	each := time.NewTicker(rescan)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-watcher.Events:
			if w.matters(e) {
				settled.Reset(settleFor)
			}
			continue
		case <-watcher.Errors: // events were lost
			settled.Reset(settleFor)
			continue
		case <-settled.C:
		case <-each.C:
		}
		if err == nil && w.watch(h.executableDirs()) {
			settled.Reset(settleFor) // a copy to it may have begun before the watch
			continue
		}
		h.refresh()
	}
}

// executableDirs returns the plugins directories and those of the configured executables. Directories, because the
// watch of a file ends when another file replaces it.
func (h *Host) executableDirs() map[string]bool {
	dirs := map[string]bool{}
	for _, kind := range plugins.Kinds {
		dirs[h.kindDir(kind)] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.wanted {
		dirs[filepath.Dir(p.spec.Load().Path)] = true
	}
	return dirs
}

// watched is a watch of directories, and for each that does not exist, of its nearest existing ancestor. It is not
// base/watchdir, which signals every event of what it watches and does not wait when a watch begins: an event in /opt
// must not have all plugins read again, and an executable that is still being copied must not start.
type watched struct {
	*fsnotify.Watcher
	dirs   map[string]bool // all of their entries matter
	onPath map[string]bool // the ancestor of a missing directory, and its entry on the path to it
}

// watch replaces the watched directories, and reports whether the watch of a new one has begun.
func (w *watched) watch(dirs map[string]bool) (begun bool) {
	w.dirs, w.onPath = dirs, map[string]bool{}
	places := map[string]bool{}
	for dir := range dirs {
		there, next := nearest(dir)
		places[there] = true
		if there != dir {
			w.onPath[there], w.onPath[next] = true, true
		}
	}
	for _, dir := range w.WatchList() {
		if !places[dir] {
			w.Remove(dir)
		}
		delete(places, dir)
	}
	for dir := range places {
		begun = w.Add(dir) == nil || begun // if it is gone again, the next rescan finds it
	}
	return begun
}

// matters reports whether an event may concern an executable. The ancestors have other entries too, which may change
// all the time.
func (w *watched) matters(e fsnotify.Event) bool {
	return w.dirs[filepath.Dir(e.Name)] || w.dirs[e.Name] || w.onPath[e.Name]
}

// nearest returns the directory itself, or its nearest existing ancestor and the missing entry in it.
func nearest(dir string) (there, next string) {
	for there = dir; filepath.Dir(there) != there; there = filepath.Dir(there) {
		if info, err := os.Stat(there); err == nil && info.IsDir() {
			break
		}
		next = there
	}
	return there, next
}
