package pluginadmin

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/watchdir"
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
	watched := watchdir.New(watchdir.Options{Settle: settle, Poll: rescan, Log: log})
	defer watched.Close()
	var last [sha256.Size]byte
	reconcile.Loop(ctx, watched.Changed(), 0, func() time.Duration {
		watched.Follow(filepath.Dir(path))
		if now := contentOf(path); now != last {
			last = now
			changed()
		}
		return rescan
	})
}

// contentOf returns the digest of the file; zero if it cannot be read.
func contentOf(path string) [sha256.Size]byte {
	content, err := os.ReadFile(path)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(content)
}
