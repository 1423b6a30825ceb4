// Package watchdir signals changes in directories, by inotify. The host may allow no more watches: its limits apply to
// all programs of a user together, including pods. The Watcher then logs that once, and the caller polls.
package watchdir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
)

// Options of a Watcher. All are required except New.
type Options struct {
	// Settle is how long everything must be quiet before a change is signalled: editors and copies write in several
	// steps.
	Settle time.Duration
	// Poll is how often the caller polls without a signal; it only appears in the log.
	Poll time.Duration
	// Log receives directories that cannot be watched.
	Log logrus.FieldLogger
	// New is fsnotify.NewWatcher, unless a test sets another one.
	New func() (*fsnotify.Watcher, error)
}

// Watcher watches directories. Its methods are for one goroutine.
type Watcher struct {
	opts    Options
	changed reconcile.Signal
	watcher *fsnotify.Watcher // nil: the host has none left
	said    logging.Once
	running sync.WaitGroup
}

// New returns a Watcher of nothing. The caller closes it.
func New(opts Options) *Watcher {
	if opts.New == nil {
		opts.New = fsnotify.NewWatcher
	}
	w := &Watcher{opts: opts, changed: reconcile.NewSignal()}
	watcher, err := opts.New()
	if err != nil {
		w.tell("directories", err)
		return w
	}
	w.watcher = watcher
	w.running.Go(w.forward)
	return w
}

// Changed receives a signal when something has changed and everything is quiet again.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Close ends the watch.
func (w *Watcher) Close() {
	if w.watcher != nil {
		w.watcher.Close()
		w.running.Wait()
	}
}

// forward ends when the watcher is closed.
func (w *Watcher) forward() {
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	<-quiet.C
	for {
		select {
		case _, ok := <-w.watcher.Events:
			if !ok {
				return
			}
		case err, ok := <-w.watcher.Errors: // an overflow, say: something may have changed
			if !ok {
				return
			}
			w.opts.Log.WithError(err).Warn("watch directories")
		case <-quiet.C:
			w.changed.Send()
			continue
		}
		quiet.Reset(w.opts.Settle)
	}
}

// Add watches one more directory, and reports whether it is watched. A missing directory is not watched: its parent's
// watch shows when it appears. Add a directory again after it was removed and recreated; adding it twice does no harm.
func (w *Watcher) Add(dir string) bool {
	if w.watcher == nil {
		return false
	}
	err := w.watcher.Add(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return w.tell(dir, err)
}

// Follow watches only the directory or, while it does not exist, its nearest existing parent; it reports whether that
// is watched. Call it again after each signal, since directories come and go.
func (w *Watcher) Follow(dir string) bool {
	if w.watcher == nil {
		return false
	}
	return w.tell(dir, w.nearest(dir))
}

func (w *Watcher) nearest(dir string) error {
	for {
		err := w.watcher.Add(dir)
		if err == nil {
			break
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || parent == dir {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		dir = parent
	}
	for _, watched := range w.watcher.WatchList() {
		if watched == dir {
			continue
		}
		if err := w.watcher.Remove(watched); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
			return err
		}
	}
	return nil
}

// tell logs once what cannot be watched, and reports whether it can be.
func (w *Watcher) tell(what string, err error) bool {
	if err == nil {
		w.said.News(what, "")
		return true
	}
	if w.said.News(what, err.Error()) {
		w.opts.Log.WithError(err).Warnf("changes in %s are noticed only every %s: raise fs.inotify.max_user_instances and fs.inotify.max_user_watches",
			what, w.opts.Poll)
	}
	return false
}
