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
	settled := time.NewTimer(0) // at once: what changed before the watch began
	defer settled.Stop()
	each := time.NewTicker(rescan)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
			settled.Reset(settleFor)
			continue
		case <-watcher.Errors: // events were lost
			settled.Reset(settleFor)
			continue
		case <-settled.C:
		case <-each.C:
		}
		if err == nil {
			h.watchDirs(watcher)
		}
		h.refresh()
	}
}

// watchDirs watches the directories of the executables: the watch of a file would end with the file that another one replaces.
func (h *Host) watchDirs(watcher *fsnotify.Watcher) {
	dirs := map[string]bool{}
	for _, kind := range plugins.Kinds {
		dirs[h.kindDir(kind)] = true
	}
	h.mu.Lock()
	for _, p := range h.wanted {
		dirs[filepath.Dir(p.spec.Load().Path)] = true
	}
	h.mu.Unlock()
	for _, dir := range watcher.WatchList() {
		if !dirs[dir] {
			watcher.Remove(dir)
		}
	}
	for dir := range dirs {
		watcher.Add(dir) // fails where there is none yet: each minute shows
	}
}
