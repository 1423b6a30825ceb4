package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/workqueues"
	"kubelith.io/kubelith/components/node/addresswatch"
	"kubelith.io/kubelith/components/node/crashes"
	"kubelith.io/kubelith/components/node/faults"
	"kubelith.io/kubelith/components/node/memory"
	"kubelith.io/kubelith/components/node/progress"
	"kubelith.io/kubelith/trace/record"
)

// stopTimeout bounds the whole ordered stop.
const stopTimeout = 25 * time.Second

// process is what surrounds the components of a server or an agent: the log, the terminal and systemd.
type process struct {
	log     *logrus.Logger
	out     *output
	systemd *progress.Systemd
	faults  *faults.Injector // of a test
	held    map[string]lifecycle.Hold
	// addresses is set when the addresses were found, not configured; nil otherwise.
	addresses *addresswatch.Watch
}

func newProcess(ctx context.Context, cfg *config.Node, out Output) (*process, error) {
	memory.BeginStart()
	p := &process{systemd: progress.CaptureSystemd()}
	var err error
	if p.out, err = out.open(cfg); err != nil {
		return nil, err
	}
	if p.faults, err = faults.Open(); err != nil {
		return nil, err
	}
	if p.log, err = logging.Setup(logging.Options{Format: cfg.LogFormat, Level: cfg.LogLevel, Out: p.out.log}); err != nil {
		return nil, err
	}
	if err = workqueues.Install(legacyregistry.Registerer()); err != nil {
		return nil, fmt.Errorf("metrics of work queues: %w", err)
	}
	p.out.restore, err = logging.CaptureStderr(p.log)
	return p, err
}

// awaitStep reports a step that runs before there are components, until done is called. done may be called again.
func (p *process) awaitStep(ctx context.Context, step string) (done func()) {
	return progress.AwaitStep(ctx, step, p.out.person(), logging.Component(p.log, "kubelith"), p.systemd)
}

// breakLoops leaves out the components that have crashed the process repeatedly.
func (p *process) breakLoops(cfg *config.Node) error {
	held, previous, err := crashes.BreakLoops(cfg.RunDir, p.faults.FirstHold())
	if previous != "" {
		logging.Component(p.log, "kubelith").Errorf("a panic ended the previous process:\n%s", previous)
	}
	p.held = held
	return err
}

// follow watches the addresses that were found on the host.
func (p *process) follow(cfg *config.Node, clusterCIDRs []string) {
	if cfg.NodeIPDetected {
		p.addresses = addresswatch.New(cfg.NodeIP, clusterCIDRs)
	}
}

// run runs the components until ctx is cancelled or one of them fails.
func (p *process) run(ctx context.Context, machine *machine, components []lifecycle.Component, goal progress.Goal) error {
	tracker := progress.New(p.out.person(), namesOf(components), goal)
	if err := p.out.begin(); err != nil {
		return err
	}
	if p.out.file != "" {
		tracker.Printf("logging to %s; ctrl-c stops the %s, and pods keep running\n", p.out.file, goal.Role)
	}
	machine.report(p.log, tracker)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
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
			tracker.Observe(e)
			machine.status.Observe(e)
			if e.State == lifecycle.Stopping {
				ends()
			}
			reached, missing := tracker.State()
			p.systemd.Observe(e, reached, missing)
			if reached {
				started()
			}
		},
		StopTimeout: stopTimeout,
		Held:        p.held,
		Timing:      p.faults.Timing(),
	}, p.faults.Wrap(components)...)
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
	crashes.EndInOrder(p.log, end, crashes.CatchPanics(group.Fail))
	var others sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	others.Go(func() { p.faults.Serve(running) })
	others.Go(func() { p.addresses.Run(running, end) })
	others.Go(func() { tracker.Remind(running, logging.Component(p.log, "kubelith"), p.systemd) })
	others.Go(func() { memory.Follow(running, isStarted, logging.Component(p.log, "kubelith")) })
	others.Go(func() { p.systemd.Ping(running) })
	others.Go(func() { keepBallast(running, machine.dir, logging.Component(p.log, "kubelith")) })
	err = group.Run(ctx)
	stop()
	others.Wait()
	var gaveUp crashes.UpstreamExit
	var moved addresswatch.Moved
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
