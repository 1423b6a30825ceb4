package host

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"kubelith.io/kubelith/plugins"
)

// TestDirectoryAppears: a directory that is created later, or again, is read at once, and not only when everything is.
func TestDirectoryAppears(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "opt", "plugins")
	spec := admissionSpec(t, "configured", "serve")
	spec.Path = filepath.Join(dir, "configured")
	h := startHost(t, spec)
	soon := func(name string) {
		t.Helper()
		for end := time.Now().Add(rescan / 2); ; time.Sleep(10 * time.Millisecond) {
			for _, s := range h.States() {
				if s.Name == name && isReady(s) {
					return
				}
			}
			if time.Now().After(end) {
				t.Fatalf("no plugin %s: %+v", name, h.States())
			}
		}
	}
	make := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	make(dir)
	os.Rename(installScript(t, dir, ".new"), spec.Path)
	soon("configured")

	kind := h.kindDir(plugins.Admission)
	if err := os.RemoveAll(filepath.Dir(kind)); err != nil {
		t.Fatal(err)
	}
	make(kind)
	installScript(t, kind, "again")
	soon("again")
	// Another directory takes its place.
	other := filepath.Join(h.opts.DataDir, "other")
	make(other)
	installScript(t, other, "moved")
	if err := os.Rename(kind, kind+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, kind); err != nil {
		t.Fatal(err)
	}
	soon("moved")
}

// TestWatched: what is in a directory when its watch begins may be half of a file, so the watcher reports when a watch
// has begun.
func TestWatched(t *testing.T) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b")
	w := &watched{Watcher: watcher}
	expect := func(what string, begun bool, place string) {
		t.Helper()
		if got := w.watch(map[string]bool{dir: true}); got != begun {
			t.Errorf("%s: a watch has begun: %v", what, got)
		}
		if list := w.WatchList(); len(list) != 1 || list[0] != place {
			t.Errorf("%s: it watches %q, want %s", what, list, place)
		}
	}
	mkdir := func(dir string) {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	expect("none is there", true, top)
	expect("nothing has changed", false, top)
	for name, matters := range map[string]bool{top: true, filepath.Join(top, "a"): true, filepath.Join(top, "log"): false, filepath.Join(dir, "p"): true, dir: true} {
		if w.matters(fsnotify.Event{Name: name, Op: fsnotify.Create}) != matters {
			t.Errorf("%s matters: %v", name, !matters)
		}
	}
	mkdir(filepath.Join(top, "a"))
	expect("the one above is there", true, filepath.Join(top, "a"))
	mkdir(dir)
	expect("it is there", true, dir)
	expect("it is watched", false, dir)
	if w.matters(fsnotify.Event{Name: filepath.Join(top, "a", "c"), Op: fsnotify.Create}) {
		t.Error("the directory above matters though it is not needed any more")
	}
}
