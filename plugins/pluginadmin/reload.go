package pluginadmin

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/reconcile"
)

const (
	// settle is how long the directory must be quiet before the file is read: editors write a file in several steps.
	settle = 300 * time.Millisecond
	// rescan is how often the file is read without a notification, as notifications can be lost.
	rescan = time.Minute
)

// watchFile calls changed at the start, if the file exists, and after each change of its content, until ctx ends. It
// watches the directory, as editors replace the file.
func watchFile(ctx context.Context, path string, changed func(), log logrus.FieldLogger) {
	var last [sha256.Size]byte
	events, stop := watchDir(path, log)
	defer stop()
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			wait.Reset(settle)
			continue
		case <-wait.C:
		}
		wait.Reset(rescan)
		if now := contentOf(path); now != last {
			last = now
			changed()
		}
	}
}

// watchDir signals events of the file in its directory. If the directory cannot be watched, it logs why and never
// signals.
func watchDir(path string, log logrus.FieldLogger) (events <-chan struct{}, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(filepath.Dir(path)); err != nil {
			watcher.Close()
		}
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) { // there may never be a configuration
			log.Warnf("changes of %s are noticed within %s only: %v", path, rescan, err)
		}
		return nil, func() {}
	}
	signal, done := reconcile.NewSignal(), make(chan struct{})
	go func() {
		defer close(done)
		for open := true; open; {
			var event fsnotify.Event
			select {
			case event, open = <-watcher.Events:
			case _, open = <-watcher.Errors: // events were lost
				event.Name = path
			}
			if open && filepath.Base(event.Name) == filepath.Base(path) {
				signal.Send()
			}
		}
	}()
	return signal, func() { watcher.Close(); <-done }
}

// contentOf returns the digest of the file; zero if it cannot be read.
func contentOf(path string) [sha256.Size]byte {
	content, err := os.ReadFile(path)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(content)
}
