// Package conformance holds what every plugin must do, whoever wrote it in whatever language: one suite for all plugins
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
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/kinds"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Check is one thing that plugins must do. What Run returns beside an error is told to whoever reads, such as a figure.
type Check struct {
	Name string
	Run  func(context.Context, *Target) (note string, err error)
}

// Result of a check.
type Result struct {
	Check string
	Note  string // a figure, or what was left out
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

// Options say what is checked.
type Options struct {
	File   string // the executable, absolute
	Args   []string
	Env    []string
	Config []byte   // JSON, as `config:` of the configuration
	Suite  []string // the command that runs csisanity.Main, for storage plugins
	Log    *logrus.Entry
}

// Checks of a kind, those of all plugins first.
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

// checkTimeout ends a check whose plugin does not answer.
const checkTimeout = 3 * time.Minute // csi-sanity takes one

// Run starts the plugin as a server would and reports one check after the other. It fails when one of them did, or when the
// plugin did not start: then that is the one result.
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

// Target is a plugin that runs to be checked.
type Target struct {
	options   Options
	host      *host.Host
	plugin    plugins.Plugin
	dir       string
	stop      context.CancelFunc
	ended     chan error
	restarted bool // by a check: that its process is another one is right
}

// startTimeout is how long a plugin may take until it is ready; the host gives up the handshake after less.
const startTimeout = 20 * time.Second

// Start starts a plugin in a directory of its own, which Close removes.
func Start(ctx context.Context, o Options) (*Target, error) {
	dir, err := os.MkdirTemp("", "kl-check-") // short: sockets are below it
	if err != nil {
		return nil, err
	}
	t := &Target{options: o, dir: dir, stop: func() {}, ended: make(chan error, 1)}
	spec := host.Spec{Name: "checked", Path: o.File, Args: o.Args, Env: o.Env, Config: o.Config, Source: "the command line"}
	options := host.Options{
		DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), NodeName: "check",
		Validate: kinds.Validators(),
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

// waitReady waits until a process serves whose generation is not the given one.
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

// recover brings the plugin back for the next check.
func (t *Target) recover(ctx context.Context) {
	if t.state().Phase != string(host.Ready) {
		_ = t.restart(ctx) // the next check says what is wrong
		t.restarted = false
	}
}

// restart replaces the process by another one of the same executable.
func (t *Target) restart(ctx context.Context) error {
	t.restarted = true
	before := t.state().Generation
	if err := t.host.Restart("checked"); err != nil {
		return err
	}
	return t.waitReady(ctx, before)
}

// state is the one plugin's.
func (t *Target) state() host.State {
	for _, s := range t.host.States() {
		if s.Phase != string(host.Draining) {
			return s
		}
	}
	return host.State{Message: "it does not run"}
}

// Kind is what the plugin says that it is.
func (t *Target) Kind() plugins.Kind { return t.plugin.Kind() }

// Plugin is for calls of a kind's own.
func (t *Target) Plugin() plugins.Plugin { return t.plugin }

// Description is the plugin's own.
func (t *Target) Description() *pluginv1.Description { return t.plugin.Description() }

// Dir is a directory for whatever a check needs, removed by Close.
func (t *Target) Dir() string { return t.dir }

// Close ends the plugin and removes what it left in its directories.
func (t *Target) Close() {
	t.stop()
	<-t.ended
	os.RemoveAll(t.dir)
}
