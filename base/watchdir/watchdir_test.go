package watchdir

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"
)

func start(t *testing.T, fresh func() (*fsnotify.Watcher, error)) (*Watcher, *logtest.Hook) {
	t.Helper()
	log, lines := logtest.NewNullLogger()
	w := New(Options{Settle: 20 * time.Millisecond, Poll: time.Minute, Log: log, New: fresh})
	t.Cleanup(func() { w.Close(); goleak.VerifyNone(t, goleak.IgnoreCurrent()) })
	return w, lines
}

func signalled(t *testing.T, w *Watcher, after string) {
	t.Helper()
	select {
	case <-w.Changed():
	case <-time.After(20 * time.Second):
		t.Fatalf("nothing is signalled after: %s", after)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFollow: a directory that appears with its parents, disappears, and appears again.
func TestFollow(t *testing.T) {
	w, lines := start(t, nil)
	root := t.TempDir()
	dir := filepath.Join(root, "etc", "net.d")
	for range 2 {
		if !w.Follow(dir) {
			t.Fatal("not watched")
		}
		must(t, os.MkdirAll(dir, 0o700))
		signalled(t, w, "the directory above was made")
		if !w.Follow(dir) {
			t.Fatal("not watched")
		}
		if list := w.watcher.WatchList(); len(list) != 1 || list[0] != dir {
			t.Fatalf("watched: %q", list)
		}
		must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
		signalled(t, w, "a file was made")
		must(t, os.RemoveAll(filepath.Join(root, "etc")))
		signalled(t, w, "all was removed")
	}
	if len(lines.AllEntries()) > 0 {
		t.Errorf("said: %v", lines.AllEntries())
	}
}

// TestAdd: several directories at once; a missing one is no error.
func TestAdd(t *testing.T) {
	w, lines := start(t, nil)
	a, b := t.TempDir(), t.TempDir()
	if !w.Add(a) || !w.Add(b) || !w.Add(filepath.Join(a, "missing")) {
		t.Fatal("not watched")
	}
	for _, dir := range []string{a, b} {
		must(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
		signalled(t, w, "a file was made in "+dir)
	}
	if len(lines.AllEntries()) > 0 {
		t.Errorf("said: %v", lines.AllEntries())
	}
}

// TestRefused: the host allows no more watches, which is logged once.
func TestRefused(t *testing.T) {
	for name, fresh := range map[string]func() (*fsnotify.Watcher, error){
		"no instance": func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE },
		"no watch": func() (*fsnotify.Watcher, error) { // adding to one that is closed fails
			w, err := fsnotify.NewWatcher()
			if err == nil {
				err = w.Close()
			}
			return w, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, lines := start(t, fresh)
			dir := t.TempDir()
			for range 2 {
				if w.Follow(dir) {
					t.Error("watched")
				}
			}
			if all := lines.AllEntries(); len(all) != 1 || !strings.Contains(all[0].Message, "only every 1m0s: raise fs.inotify.max_user_instances") {
				t.Errorf("said: %v", all)
			}
		})
	}
}
