// Package manifests is the component "manifests": it keeps the cluster in line with files. It applies the files in a
// directory of the server and those embedded in the executable, applies them again when they change, and deletes the
// objects that they no longer contain.
//
// Each file is an ApplySet as upstream specifies it (KEP-3659): a ConfigMap in kube-system, its parent, represents the
// file and records the kinds and namespaces of its objects; the objects carry its id in a label. So a later start finds
// the objects of a file that was removed meanwhile, and kubectl understands the sets.
//
// Not here: objects that other components need before they can work (bootstrap.go of the apiserver component). Manual
// changes to the objects stay until the file changes or the server restarts.
//
//	files.go: read, watched -> parse.go: documents -> pass.go: what to apply and to delete -> api.go: requests
//	                                                       |
//	                         fault.go, lines.go: the error, in which line -> log and Event
package manifests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/watchdir"
)

const (
	// settle is how long the files must be unchanged before they are read: editors and copies write in several steps.
	settle = 200 * time.Millisecond
	// rescan is how often the files are read without a change event, and the longest time until a failure is retried.
	rescan = time.Minute
	// firstRetry is the time before the first retry; it doubles with each further one.
	firstRetry = time.Second
)

// Options configures the component. All fields are required.
type Options struct {
	// Client calls the apiserver with an identity that may do everything: a file may contain any object.
	Client *rest.Config
	// Dir has the administrator's files; it is created when missing, for root only.
	Dir string
	// Embedded has the files of the executable.
	Embedded fs.FS
	// Log receives what was applied and deleted, and errors in files.
	Log logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts  Options
	watch func() (*fsnotify.Watcher, error) // nil, except in a test
	work  lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// passLimit is how long it may take to apply everything.
const passLimit = 10 * time.Minute

// New returns the component; nothing is touched before Run.
func New(opts Options) (*Server, error) {
	if opts.Client == nil || opts.Dir == "" || opts.Embedded == nil || opts.Log == nil {
		return nil, errors.New("manifests: client, directory, embedded files and log are all needed")
	}
	return &Server{opts: opts, work: lifecycle.Watchdog{Limit: passLimit}}, nil
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "manifests" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: no look takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready once it watches: applying the files may take long, or never succeed,
// and the node does not wait for it.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	api, err := newAPI(s.opts.Client, s.opts.Log)
	if err != nil {
		return err
	}
	return s.run(ctx, newKeeper(api, s.opts.Log), ready)
}

func (s *Server) run(ctx context.Context, k *keeper, ready func()) error {
	if err := os.MkdirAll(s.opts.Dir, 0o700); err != nil {
		return fmt.Errorf("directory of manifests: %w", err)
	}
	watched := watchdir.New(watchdir.Options{Settle: settle, Poll: rescan, Log: s.opts.Log, New: s.watch})
	defer watched.Close()
	ready()
	next := time.NewTimer(0)
	defer next.Stop()
	for retry := firstRetry; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-watched.Changed():
			retry = firstRetry
		case <-next.C:
		}
		if s.pass(ctx, watched, k) {
			retry = firstRetry
			next.Reset(rescan)
			continue
		}
		next.Reset(retry)
		retry = min(2*retry, rescan)
	}
}

// pass reads all files and brings the cluster in line with them. It reports whether nothing is left to do.
func (s *Server) pass(ctx context.Context, watched *watchdir.Watcher, k *keeper) bool {
	defer s.work.Begin("applying the manifests")()
	files, err := directory(s.opts.Dir, func(dir string) { watched.Add(dir) })
	if err == nil {
		var ours []file
		ours, err = embedded(s.opts.Embedded)
		files = append(files, ours...)
	}
	if err != nil {
		// A directory that cannot be read is not an empty one: everything stays as it is.
		k.logOnce("files", err.Error())
		return false
	}
	k.logged.News("files", "")
	var made bool
	if k.directory, made = directoryID(s.opts.Dir); made {
		k.adopts = slices.ContainsFunc(files, func(f file) bool { return !f.yields })
	}
	return k.pass(ctx, files)
}
