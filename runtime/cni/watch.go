package cni

import (
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
)

// watched is a directory that is watched or, where the host lets nobody watch any more, looked at now and then: its limits of inotify
// are for all programs of a user together, pods among them.
type watched struct {
	dir     string
	poll    time.Duration
	log     logrus.FieldLogger
	watcher *fsnotify.Watcher // nil: there is none
	told    bool              // that it cannot be watched

	// They say nothing where there is no watcher.
	events <-chan fsnotify.Event
	errors <-chan error
}

// watch begins to watch the directory of third parties.
func (s *Server) watch() *watched {
	w := &watched{dir: s.opts.HostConfDir, poll: s.poll, log: s.opts.Log}
	watcher, err := s.newWatcher()
	if err != nil {
		w.tell(err)
		return w
	}
	w.watcher, w.events, w.errors = watcher, watcher.Events, watcher.Errors
	w.renew()
	return w
}

// renew follows directories that come and go; watching one that is watched already does nothing. It tells whether the directory has to
// be looked at without a sign.
func (w *watched) renew() (polling bool) {
	if w.watcher == nil {
		return true
	}
	err := watchNearest(w.watcher, w.dir)
	if err != nil {
		w.tell(err)
	} else {
		w.told = false
	}
	return err != nil
}

func (w *watched) tell(err error) {
	if !w.told {
		w.log.WithError(err).Warnf("changes in %s are noticed every %s only: raise fs.inotify.max_user_instances and fs.inotify.max_user_watches", w.dir, w.poll)
	}
	w.told = true
}

func (w *watched) close() {
	if w.watcher != nil {
		w.watcher.Close()
	}
}
