// Package conformance checks what every plugin must do, in whatever language it is written: one suite for all plugins
// and one per kind. `kubelith plugin check FILE` and the tests of the examples run them against a real process.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/admission"
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/process"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/scheduling"
	"kubelith.io/kubelith/plugins/storage"
)

// Check is one requirement. Run returns a note for the reader, such as a measurement, and an error if the plugin does
// not meet it.
type Check struct {
	Name string
	Run  func(context.Context, *Target) (note string, err error)
}

// Result of a check.
type Result struct {
	Check string
	Note  string // a measurement, or what was not checked
	Err   error  // nil: passed
}

func (r Result) String() string {
	switch {
	case r.Err != nil:
		return fmt.Sprintf("failed   %s: %v", r.Check, r.Err)
	case r.Note != "":
		return fmt.Sprintf("ok       %s: %s", r.Check, r.Note)
	}
	return "ok       " + r.Check
}

// Options say what to check.
type Options struct {
	File   string // the executable, absolute
	Args   []string
	Env    []string
	Config []byte   // JSON, as `config:` of the configuration
	Suite  []string // the command that runs csisanity.Main, for storage plugins
	Log    *logrus.Entry
}

// Checks returns the checks of a kind, starting with those of all plugins.
func Checks(kind plugins.Kind) []Check {
	all := common()
	switch kind {
	case plugins.Admission:
		all = append(all, admissionChecks()...)
	case plugins.Scheduling:
		all = append(all, schedulingChecks()...)
	case plugins.Storage:
		all = append(all, storageChecks()...)
	}
	return all
}

// checkTimeout bounds one check.
const checkTimeout = 3 * time.Minute // csi-sanity takes one minute

// Run starts the plugin as a server would and reports one check after the other. It returns an error if a check fails,
// or if the plugin does not start, which it reports as the only result.
func Run(ctx context.Context, o Options, report func(Result)) error {
	target, err := Start(ctx, o)
	if err != nil {
		report(Result{Check: "starts and describes itself", Err: err})
		return errors.New("the plugin does not start")
	}
	defer target.Close()
	report(Result{Check: "starts and describes itself", Note: fmt.Sprintf("%s plugin %s", target.Kind(), target.state().Version)})
	failed := 0
	for _, check := range Checks(target.Kind()) {
		result := Result{Check: check.Name}
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		before := target.state().Generation
		result.Note, result.Err = check.Run(ctx, target)
		cancel()
		if now := target.state(); result.Err == nil && now.Generation != before && !target.restarted {
			result.Err = fmt.Errorf("its process ended: %s", now.Message)
		}
		target.restarted = false
		if result.Err != nil {
			failed++
			target.recover(ctx)
		}
		report(result)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(Checks(target.Kind())))
	}
	return nil
}

// Target is a running plugin under check.
type Target struct {
	options   Options
	host      *host.Host
	plugin    plugins.Plugin
	dir       string
	stop      context.CancelFunc
	ended     chan error
	restarted bool // a check restarted it: another process is expected
}

// startTimeout bounds the start of a plugin: the host's own limit, and a moment for its message.
const startTimeout = process.StartTimeout + 5*time.Second

// validators return an error for descriptions that a kind cannot work with.
func validators() map[plugins.Kind]func(string, *pluginv1.Description) error {
	return map[plugins.Kind]func(string, *pluginv1.Description) error{
		plugins.Admission:  admission.Validate,
		plugins.Scheduling: scheduling.Validate,
		plugins.Storage:    storage.Validate,
	}
}

// Start starts a plugin in a temporary directory, which Close removes.
func Start(ctx context.Context, o Options) (*Target, error) {
	dir, err := os.MkdirTemp("", "kl-check-") // short, as paths of sockets must be
	if err != nil {
		return nil, err
	}
	t := &Target{options: o, dir: dir, stop: func() {}, ended: make(chan error, 1)}
	spec := host.Spec{Spec: process.Spec{Name: "checked", Path: o.File, Args: o.Args, Env: o.Env, Config: o.Config, Source: "the command line"}}
	options := host.Options{
		DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), NodeName: "check",
		Validate: validators(),
		Log:      o.Log,
	}
	if spec.Kind, err = host.KindOf(ctx, options, spec); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	options.Specs = []host.Spec{spec}
	t.host = host.New(options)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	t.stop = stop
	go func() { t.ended <- t.host.Run(running, func() {}) }()
	if err := t.waitReady(ctx, 0); err != nil {
		t.Close()
		return nil, err
	}
	t.plugin = t.host.Plugins(spec.Kind)[0]
	return t, nil
}

// waitReady waits until a process serves whose generation is another one than not.
func (t *Target) waitReady(ctx context.Context, not uint64) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		switch s := t.state(); {
		case s.Phase == string(host.Ready) && s.Generation != not:
			return nil
		case s.Phase == string(host.Backoff) || s.Phase == string(host.Failed):
			return errors.New(s.Message)
		case ctx.Err() != nil:
			return fmt.Errorf("not ready after %v: %s", startTimeout, s.Message)
		}
		select {
		case err := <-t.ended:
			t.ended <- err
			return fmt.Errorf("the host ended: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// recover restarts a plugin that does not serve, for the next check.
func (t *Target) recover(ctx context.Context) {
	if t.state().Phase != string(host.Ready) {
		_ = t.restart(ctx) // the next check fails if this does
		t.restarted = false
	}
}

// restart replaces the process by one of the same executable.
func (t *Target) restart(ctx context.Context) error {
	t.restarted = true
	before := t.state().Generation
	if err := t.host.Restart("checked"); err != nil {
		return err
	}
	return t.waitReady(ctx, before)
}

// state returns the state of the plugin.
func (t *Target) state() host.State {
	for _, s := range t.host.States() {
		if s.Phase != string(host.Draining) {
			return s
		}
	}
	return host.State{Message: "it does not run"}
}

// Kind returns the kind that the plugin declares.
func (t *Target) Kind() plugins.Kind { return t.plugin.Kind() }

// Description returns the plugin's description.
func (t *Target) Description() *pluginv1.Description { return t.plugin.Description() }

// Close stops the plugin and removes its directories.
func (t *Target) Close() {
	t.stop()
	<-t.ended
	os.RemoveAll(t.dir)
}
