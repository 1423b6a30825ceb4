package host

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"kubelith.io/kubelith/plugins"
)

const (
	settleFor = 300 * time.Millisecond // without a change of a file before it is read: copies take their time
	rescan    = time.Minute            // without a sign of a change
)

// kindDir has the executables that the operator drops there.
func (h *Host) kindDir(kind plugins.Kind) string {
	return filepath.Join(h.opts.DataDir, "plugins", string(kind))
}

// directorySpecs are the plugins of the directories, by name. What is hidden is of editors and of copies under way.
func (h *Host) directorySpecs() []*Spec {
	var out []*Spec
	for _, kind := range plugins.Kinds {
		dir := h.kindDir(kind)
		entries, _ := os.ReadDir(dir) // made by Run
		for _, e := range entries {
			if e.IsDir() || strings.HasPrefix(e.Name(), ".") || strings.HasSuffix(e.Name(), "~") {
				continue
			}
			out = append(out, &Spec{Name: e.Name(), Kind: kind, Path: filepath.Join(dir, e.Name()), Source: dir})
		}
	}
	slices.SortStableFunc(out, func(a, b *Spec) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// watch looks again at everything when a file has changed, and each minute.
func (h *Host) watch(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		h.log.WithError(err).Warnf("changes of plugins are seen within %v only: raise fs.inotify.max_user_instances", rescan)
		watcher = &fsnotify.Watcher{} // says nothing
	} else {
		defer watcher.Close()
	}
	w := &watched{Watcher: watcher}
	settled := time.NewTimer(0) // at once: what changed before the watch began
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
			settled.Reset(settleFor) // nobody has seen yet what is being copied there
			continue
		}
		h.refresh()
	}
}

// executableDirs has those of the kinds and of what is configured: the watch of a file would end with the file that another one replaces.
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

// watched are directories, and for each that is not there the nearest one above it that is.
type watched struct {
	*fsnotify.Watcher
	dirs   map[string]bool // all of whose entries matter
	leadTo map[string]bool // the next step to one that is not there, and the directory that it is to appear in
}

// watch makes these the directories, and tells whether the watch of one has begun.
func (w *watched) watch(dirs map[string]bool) (begun bool) {
	w.dirs, w.leadTo = dirs, map[string]bool{}
	places := map[string]bool{}
	for dir := range dirs {
		there, next := nearest(dir)
		places[there] = true
		if there != dir {
			w.leadTo[there], w.leadTo[next] = true, true
		}
	}
	for _, dir := range w.WatchList() {
		if !places[dir] {
			w.Remove(dir)
		}
		delete(places, dir)
	}
	for dir := range places {
		begun = w.Add(dir) == nil || begun // it may be gone again: its parent is not watched yet, and each minute shows
	}
	return begun
}

// matters tells whether an event may be of an executable: the directories above have other entries too, which may never rest.
func (w *watched) matters(e fsnotify.Event) bool {
	return w.dirs[filepath.Dir(e.Name)] || w.dirs[e.Name] || w.leadTo[e.Name]
}

// nearest is the directory itself, or the nearest one above it that is there and the entry that is missing in it.
func nearest(dir string) (there, next string) {
	for there = dir; filepath.Dir(there) != there; there = filepath.Dir(there) {
		if info, err := os.Stat(there); err == nil && info.IsDir() {
			break
		}
		next = there
	}
	return there, next
}
