// Package manifests is the component "manifests": it keeps the cluster in line with files. Those that the administrator put
// into a directory of the server and those embedded in the executable are applied, applied again when they change, and
// what they no longer hold is deleted.
//
// Each file is an ApplySet as upstream specifies it (KEP-3659): a ConfigMap in kube-system, its parent, stands for the file
// and says which kinds and namespaces its objects have; the objects carry its id in a label. So a later start finds what
// a file has left that went meanwhile, and kubectl understands the sets.
//
// Not here: what other components need before they can work (bootstrap.go of the apiserver component), and changes that
// somebody makes to the objects by hand: they stay until the file changes or the server starts again.
//
//	files.go: read, watched -> parse.go: documents -> pass.go: what to apply and to delete -> api.go: requests
//	                                                       |
//	                         fault.go, lines.go: what is wrong, in which line -> log and Event
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

	"kubelith.io/kubelith/components/lifecycle"
)

const (
	// settle is how long the files have to be left alone before they are read: editors and copies write in several steps.
	settle = 200 * time.Millisecond
	// rescan is how often the files are read without a sign that one has changed, and the longest time until what failed
	// is tried again.
	rescan = time.Minute
	// firstRetry is when what failed is tried again; each further time is twice as long.
	firstRetry = time.Second
)

// Options is what the component is made of. All fields are required.
type Options struct {
	// Client reaches the apiserver with an identity that may do everything: any object may be in a file.
	Client *rest.Config
	// Dir has the administrator's files; it is made when missing, for root only.
	Dir string
	// Embedded has the files of the executable.
	Embedded fs.FS
	// Log tells what was applied and deleted, and what is wrong with a file.
	Log logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts  Options
	watch func() (*fsnotify.Watcher, error)
	work  lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// lookLimit is how long it may take to apply everything.
const lookLimit = 10 * time.Minute

// New returns the component; nothing is touched before Run.
func New(opts Options) (*Server, error) {
	if opts.Client == nil || opts.Dir == "" || opts.Embedded == nil || opts.Log == nil {
		return nil, errors.New("manifests: client, directory, embedded files and log are all needed")
	}
	return &Server{opts: opts, watch: fsnotify.NewWatcher, work: lifecycle.Watchdog{Limit: lookLimit}}, nil
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "manifests" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// Healthy implements lifecycle.Health: no look takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready once it watches: what is in the files may take its time, or never
// succeed, and the node does not wait for it.
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
	watcher, err := s.watch()
	var events <-chan fsnotify.Event
	var errs <-chan error
	if err != nil { // the host has a limit for all programs together
		s.opts.Log.WithError(err).Warnf("changes in %s are noticed once a minute only: raise fs.inotify.max_user_instances", s.opts.Dir)
	} else {
		defer watcher.Close()
		events, errs = watcher.Events, watcher.Errors
	}
	ready()
	next := time.NewTimer(0)
	defer next.Stop()
	retry := firstRetry
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			retry = firstRetry
			next.Reset(settle)
		case err := <-errs: // an overflow, say: look again
			s.opts.Log.WithError(err).Warnf("watch %s", s.opts.Dir)
			next.Reset(settle)
		case <-next.C:
			if s.look(ctx, watcher, k) {
				retry = firstRetry
				next.Reset(rescan)
				continue
			}
			next.Reset(retry)
			retry = min(2*retry, rescan)
		}
	}
}

// look reads all files and brings the cluster in line with them. It says whether nothing is left to do.
func (s *Server) look(ctx context.Context, w *fsnotify.Watcher, k *keeper) bool {
	defer s.work.Begin("a look at the manifests")()
	watch := func(dir string) {
		if w == nil {
			return
		}
		if err := w.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // the files can be read all the same
			k.sayOnce("watch", "changes in "+dir+" are noticed once a minute only: "+err.Error())
		}
	}
	files, err := directory(s.opts.Dir, watch)
	if err == nil {
		var ours []file
		ours, err = embedded(s.opts.Embedded)
		files = append(files, ours...)
	}
	if err != nil {
		// A directory that cannot be read is not an empty one: everything stays as it is.
		k.sayOnce("files", err.Error())
		return false
	}
	k.forget("files")
	var made bool
	if k.directory, made = directoryID(s.opts.Dir); made {
		k.adopts = slices.ContainsFunc(files, func(f file) bool { return !f.yields })
	}
	return k.pass(ctx, files)
}
