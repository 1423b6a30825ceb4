package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/trace/record"
)

// stopTimeout bounds the whole ordered stop.
const stopTimeout = 25 * time.Second

// process is what surrounds the components of a server or an agent: the log, the terminal and systemd.
type process struct {
	log     *logrus.Logger
	out     *output
	systemd *systemd
	faults  *faults // of a test
	held    map[string]lifecycle.Hold
	// addresses is set when the addresses were found, not configured; nil otherwise.
	addresses *addressWatch
}

func newProcess(ctx context.Context, cfg *config.Node, out Output) (*process, error) {
	setGCPercent(startGCPercent)
	p := &process{systemd: captureSystemd()}
	var err error
	if p.out, err = out.open(cfg); err != nil {
		return nil, err
	}
	if p.faults, err = openFaults(); err != nil {
		return nil, err
	}
	if p.log, err = logging.Setup(logging.Options{Format: cfg.LogFormat, Level: cfg.LogLevel, Out: p.out.log}); err != nil {
		return nil, err
	}
	p.out.restore, err = captureStderr(p.log)
	return p, err
}

// run runs the components until ctx is cancelled or one of them fails.
func (p *process) run(ctx context.Context, machine *machine, components []lifecycle.Component, goal goal) error {
	progress := newProgress(p.out.person(), components, goal)
	if err := p.out.begin(); err != nil {
		return err
	}
	if p.out.file != "" {
		progress.printf("logging to %s; ctrl-c stops the %s, and pods keep running\n", p.out.file, goal.role)
	}
	machine.report(p.log, progress)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	last := &lastError{}
	p.log.AddHook(last)
	isStarted := make(chan struct{})
	started := sync.OnceFunc(func() {
		close(isStarted)
		if err := machine.dir.Adopt(); err != nil {
			logging.Component(p.log, "kubelith").Warnf("cannot record that this release uses the data: %v", err)
		}
	})
	ends := sync.OnceFunc(func() { close(machine.ending) })
	group, err := lifecycle.NewGroup(lifecycle.Options{
		Log: logging.Component(p.log, "kubelith"),
		Observe: func(e lifecycle.Event) {
			progress.observe(e)
			machine.status.Observe(e)
			if e.State == lifecycle.Stopping {
				ends()
			}
			reached, missing := progress.state()
			p.systemd.observe(e, reached, missing)
			if reached {
				started()
			}
		},
		StopTimeout: stopTimeout,
		Held:        p.held,
		Timing:      p.faults.timing(),
	}, p.faults.wrap(components)...)
	if err != nil {
		return err
	}
	if err := legacyregistry.Registerer().Register(machine.status); err != nil {
		return fmt.Errorf("metrics of components: %w", err)
	}
	if machine.record != nil {
		if err := legacyregistry.Registerer().Register(record.NewMetrics(machine.record)); err != nil {
			return fmt.Errorf("metrics of the flight recorder: %w", err)
		}
	}
	caught := catchPanics(group.Fail)
	endInOrder(end, last, caught)
	var others sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	others.Go(func() { p.faults.serve(running) })
	others.Go(func() { p.addresses.run(running, end) })
	others.Go(func() { progress.remind(running, logging.Component(p.log, "kubelith"), p.systemd) })
	others.Go(func() { followLoad(running, isStarted, logging.Component(p.log, "kubelith")) })
	others.Go(func() { p.systemd.ping(running) })
	others.Go(func() { keepBallast(running, machine.dir, logging.Component(p.log, "kubelith")) })
	err = group.Run(ctx)
	stop()
	others.Wait()
	var gaveUp upstreamExit
	var moved moved
	if cause := context.Cause(ctx); errors.As(cause, &gaveUp) || errors.As(cause, &moved) {
		if err != nil { // a consequence
			logging.Component(p.log, "kubelith").WithError(err).Warn("also failed")
		}
		return cause
	}
	return err
}

// ballastEvery is how often to check whether the ballast of the data directory can be created again.
const ballastEvery = time.Minute

// keepBallast reserves space for a start on a full disk until ctx ends.
func keepBallast(ctx context.Context, dir *datadir.Dir, log logrus.FieldLogger) {
	failed := false
	reconcile.Loop(ctx, nil, 0, func() time.Duration {
		err := dir.KeepBallast()
		if err != nil && !failed {
			log.Warnf("cannot reserve space for a start on a full disk: %v", err)
		}
		failed = err != nil
		return ballastEvery
	})
}

// upstreamExit is the reason for a stop that an upstream component requested: the error that it logged.
type upstreamExit string

func (e upstreamExit) Error() string {
	return "an upstream component asked to exit: " + string(e) + ": see the log lines before this"
}

// endInOrder turns the exit that upstream components request from klog into the end of the component, if it can be
// restarted, or into an ordered stop: etcd and containerd are in the same process. The components log the reason just
// before.
func endInOrder(end context.CancelCauseFunc, why *lastError, p *panics) {
	klog.OsExit = func(int) {
		if exit := upstreamExit(why.text()); !p.fail(p.component(), exit) {
			end(exit)
		}
		runtime.Goexit() // as os.Exit, it does not return; the component's Run ends, so that the stop need not wait for it
	}
}

// lastError remembers the last error of the log in one line.
type lastError struct{ last atomic.Value }

// Levels implements logrus.Hook.
func (*lastError) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel}
}

// Fire implements logrus.Hook.
func (l *lastError) Fire(e *logrus.Entry) error {
	text, _, _ := strings.Cut(strings.TrimSpace(e.Message), "\n") // a stack may follow
	for _, key := range []string{logrus.ErrorKey, "err"} {        // klog's key is the second
		if err, ok := e.Data[key]; ok {
			text += ": " + strings.ReplaceAll(fmt.Sprint(err), "\n", " ")
		}
	}
	if component, ok := e.Data["component"]; ok {
		text = fmt.Sprintf("%v: %s", component, text)
	}
	l.last.Store(text)
	return nil
}

func (l *lastError) text() string {
	text, _ := l.last.Load().(string)
	return text
}
