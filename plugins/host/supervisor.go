package host

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
)

const (
	firstRetry   = 200 * time.Millisecond // doubles with each failure
	maxRetry     = time.Minute
	servingRetry = 5 * time.Second  // maximum for a plugin that got ready: it serves between its crashes
	giveUpAfter  = 5                // failures in a row: then retried each maxRetry only
	stableAfter  = 10 * time.Second // a process that ends later starts the count of failures again
	checkEvery   = 5 * time.Second
	checkAgain   = time.Second // minimum between checks that calls without answer cause
)

// drainTimeout is how long a replaced process may finish its calls: a little more than a call of its kind may take.
var drainTimeout = map[plugins.Kind]time.Duration{
	plugins.Admission:  30 * time.Second,
	plugins.Scheduling: time.Second,
	plugins.Storage:    2 * time.Minute,
}

// errUnchanged ends a replacement: the running process has the same file and settings.
var errUnchanged = errors.New("nothing has changed")

// supervisor keeps one plugin running. Only its goroutine accesses the fields.
type supervisor struct {
	*plugin
	attempt   *attempt // under way; nil: none
	again     bool     // start again once the attempt has ended
	force     bool     // even if nothing has changed
	retry     *time.Timer
	failures  int    // in a row, without a stable process
	served    bool   // a process got ready
	lastError string // the last failure that was logged
	refused   wanted // what failed last as a replacement: it is not tried again

	misses    int // missed health checks in a row
	lastCheck time.Time
	checking  bool
	checked   chan checkResult

	draining sync.WaitGroup // replaced processes
}

// attempt is a start under way.
type attempt struct {
	wanted
	cancel func()
	result chan result // capacity 1
}

type result struct {
	i   *instance
	exe process.FileID // that was verified
	err error
}

// wanted is what a process is to be made from.
type wanted struct {
	spec *Spec
	exe  process.FileID
}

// same reports whether a process made from one serves for the other. Source and call settings do not reach the process.
func (w wanted) same(other wanted) bool {
	if w.spec == nil || other.spec == nil || w.exe != other.exe {
		return false
	}
	return sameProcess(w.spec.Spec, other.spec.Spec)
}

func sameProcess(a, b process.Spec) bool {
	a.Source, b.Source = "", ""
	return reflect.DeepEqual(a, b)
}

// checkResult is the result of a health check.
type checkResult struct {
	i   *instance
	err error
}

// supervise runs until ctx ends or the plugin is no longer wanted.
func (p *plugin) supervise(ctx context.Context) {
	defer close(p.ended)
	s := &supervisor{plugin: p, checked: make(chan checkResult, 1), retry: time.NewTimer(time.Hour)}
	s.retry.Stop()
	defer s.retry.Stop()
	checks := time.NewTicker(checkEvery)
	defer checks.Stop()
	s.begin(ctx, false)
	for {
		var started chan result
		if s.attempt != nil {
			started = s.attempt.result
		}
		var died <-chan struct{}
		serving := s.current.Load()
		if serving != nil {
			died = serving.Done()
		}
		select {
		case <-ctx.Done():
			s.leave(ctx)
			return
		case <-p.gone:
			s.leave(ctx)
			return
		case <-p.wake:
			s.reconsider(ctx)
		case r := <-started:
			s.started(ctx, r)
		case <-s.retry.C:
			s.begin(ctx, false)
		case <-died:
			s.died(serving)
		case <-checks.C:
			s.check(ctx, serving)
		case <-p.suspect:
			if time.Since(s.lastCheck) > checkAgain {
				s.check(ctx, serving)
			}
		case v := <-s.checked:
			s.handleCheck(ctx, v)
		}
	}
}

// now returns what a process would be made from now.
func (s *supervisor) now() wanted {
	spec := s.spec.Load()
	return wanted{spec, process.StatID(spec.Path)}
}

// reconsider starts a process if the running one is not what is wanted, or if a restart is requested.
func (s *supervisor) reconsider(ctx context.Context) {
	s.mu.Lock()
	restart := s.restart
	s.restart = false
	s.mu.Unlock()

	now := s.now()
	serving := s.current.Load()
	switch {
	case s.attempt != nil:
		if restart || !s.attempt.same(now) {
			s.again, s.force = true, s.force || restart
			s.attempt.cancel()
		}
		return
	case restart:
	case serving != nil && now.exe == *serving.exe.Load() && sameProcess(now.spec.Spec, *serving.Spec()), serving != nil && now.same(s.refused):
		return
	case serving == nil && now.same(s.refused): // the retry timer runs
		return
	}
	s.failures, s.lastError = 0, ""
	s.begin(ctx, restart)
}

// begin starts a process. If one serves, it is a replacement, which ends with errUnchanged if it would be the same and
// force is not set.
func (s *supervisor) begin(ctx context.Context, force bool) {
	s.retry.Stop()
	now := s.now()
	ctx, cancel := context.WithCancel(ctx)
	s.attempt = &attempt{wanted: now, cancel: cancel, result: make(chan result, 1)}
	serving := s.current.Load()
	if serving == nil {
		s.set(Starting, note{})
	}
	result := s.attempt.result
	go func() {
		result <- s.host.attempt(ctx, now.spec, serving, force)
	}()
}

// attempt verifies the executable and starts a process.
func (h *Host) attempt(ctx context.Context, spec *Spec, serving *instance, force bool) result {
	exe, err := process.Verify(&spec.Spec, h.opts.DataDir)
	if err != nil {
		return result{err: err}
	}
	if serving != nil && !force && exe.SHA256 == serving.SHA256() && sameProcess(spec.Spec, *serving.Spec()) {
		exe.Close()
		return result{exe: exe.ID, err: errUnchanged}
	}
	p, err := h.launcher.Start(ctx, &spec.Spec, exe)
	if err != nil {
		return result{exe: exe.ID, err: err}
	}
	return result{newInstance(p, exe.ID), exe.ID, nil}
}

// started handles the result of an attempt.
func (s *supervisor) started(ctx context.Context, r result) {
	attempt := s.attempt
	s.attempt = nil
	attempt.cancel()
	serving := s.current.Load()
	if s.again {
		force := s.force
		s.again, s.force = false, false
		if r.i != nil {
			s.stop(r.i)
		}
		s.begin(ctx, force)
		return
	}
	switch {
	case r.err == errUnchanged && serving == nil: // it has ended since
		s.begin(ctx, false)
	case r.err == errUnchanged:
		serving.exe.Store(&r.exe)
	case r.err != nil && serving != nil:
		s.refused = attempt.wanted
		s.keep(r.err)
	case r.err != nil:
		s.refused = attempt.wanted
		s.failed(r.err, PluginFailed)
	default:
		s.refused = wanted{}
		s.serve(ctx, r.i)
	}
}

// serve makes a process the one that gets the calls.
func (s *supervisor) serve(ctx context.Context, i *instance) {
	s.host.descriptions.save(i.Spec(), i.Description())
	s.description.Store(i.Description())
	s.mu.Lock()
	s.state.Starts++
	s.mu.Unlock()
	s.served, s.lastError, s.misses = true, "", 0
	before := s.current.Swap(i)
	s.set(Ready, note{})
	s.next.Send()
	log := s.log().WithField("pid", i.PID())
	if before == nil {
		log.Infof("ready: version %q, sha256 %s", i.Description().GetVersion(), process.ShortSHA256(i.SHA256()))
		s.changed(PluginReady)
	} else {
		log.Infof("replaced: version %q, sha256 %s, now serves instead of sha256 %s",
			i.Description().GetVersion(), process.ShortSHA256(i.SHA256()), process.ShortSHA256(before.SHA256()))
		s.changed(PluginReplaced)
		s.draining.Go(func() {
			before.drain(ctx, drainTimeout[s.kind])
			s.stop(before)
		})
	}
	s.settle()
}

// keep handles a failed replacement: the process before it goes on serving.
func (s *supervisor) keep(err error) {
	serving := s.current.Load()
	n := errorNote("its replacement %s; keeps running sha256 "+process.ShortSHA256(serving.SHA256()), err)
	s.log().Error(n.message)
	s.set(Ready, n)
	s.observe(PluginFailed)
}

// failed handles the failure of a plugin that has no process: it schedules the next start.
func (s *supervisor) failed(reason error, event string) {
	s.failures++
	delay := min(firstRetry<<min(s.failures-1, 20), maxRetry)
	phase := Backoff
	switch {
	case s.served:
		delay = min(delay, servingRetry)
	case s.failures >= giveUpAfter:
		phase, delay = Failed, maxRetry
	}
	s.retry.Reset(delay)
	n := errorNote(fmt.Sprintf("%%s; retrying in %v", delay), reason)
	s.set(phase, n)
	if reason.Error() == s.lastError {
		s.log().Debug(n.message)
	} else {
		s.log().Error(n.message)
	}
	s.lastError = reason.Error()
	s.changed(event)
	s.settle()
}

// died handles a serving process that ended by itself, or was killed.
func (s *supervisor) died(i *instance) {
	s.current.CompareAndSwap(i, nil)
	reason, event := i.ExitReason(), PluginFailed
	switch {
	case i.OutOfMemory():
		event = PluginOOM
	case i.Killed():
		reason = fmt.Errorf("did not answer two health checks of %v: killed", process.HealthTimeout)
	}
	if time.Since(i.Started()) > stableAfter {
		s.failures, s.lastError = 0, ""
	}
	s.stop(i)
	if s.attempt != nil { // a replacement is under way and will serve
		n := errorNote("%s", reason)
		s.set(Starting, n)
		s.log().Error(n.message)
		s.changed(event)
		return
	}
	s.failed(reason, event)
}

// check starts a health check unless one is under way.
func (s *supervisor) check(ctx context.Context, i *instance) {
	if i == nil || s.checking {
		return
	}
	s.checking, s.lastCheck = true, time.Now()
	go func() { s.checked <- checkResult{i, i.Health(ctx)} }()
}

// handleCheck handles the result of a health check. After one miss, calls fail at once; after two, the process is
// killed.
func (s *supervisor) handleCheck(ctx context.Context, v checkResult) {
	s.checking = false
	if v.i != s.current.Load() || ctx.Err() != nil {
		return
	}
	if v.err == nil {
		if s.misses = 0; v.i.unhealthy.Swap(false) {
			s.set(Ready, note{})
			s.next.Send()
			s.log().Info("answers again")
			s.changed(PluginReady)
		}
		return
	}
	s.misses++
	if s.misses > 1 {
		v.i.Kill()
		return
	}
	n := publicNote("did not answer a health check of %v", process.HealthTimeout)
	v.i.unhealthy.Store(true)
	s.set(Unhealthy, n)
	s.log().Warn(n.message)
	s.changed(PluginUnhealthy)
	s.check(ctx, v.i)
}

// leave stops all processes: at once if ctx has ended, else when their calls have ended.
func (s *supervisor) leave(ctx context.Context) {
	if s.attempt != nil {
		s.attempt.cancel()
		if r := <-s.attempt.result; r.i != nil {
			s.stop(r.i)
		}
	}
	if i := s.current.Swap(nil); i != nil {
		s.set(Draining, publicNote("it is no longer wanted"))
		i.drain(ctx, drainTimeout[s.kind])
		s.stop(i)
	}
	s.draining.Wait()
	if s.checking {
		<-s.checked
	}
	s.settle()
}

// stop stops a process that gets no more calls.
func (s *supervisor) stop(i *instance) {
	if err := i.stop(); err != nil {
		s.log().WithError(err).Warn("cannot remove everything that belongs to its process")
	}
}

// settle records that the first start has succeeded or failed.
func (s *supervisor) settle() {
	select {
	case <-s.settled:
	default:
		close(s.settled)
	}
}

// changed notifies the plugin's callers and the observer.
func (s *supervisor) changed(reason string) {
	s.host.notify(s.kind)
	s.observe(reason)
}

// observe notifies the observer.
func (s *supervisor) observe(reason string) {
	if observe := s.host.opts.Observe; observe != nil {
		observe.Changed(s.State(), reason)
	}
}

// log returns a logger for lines about the plugin.
func (p *plugin) log() *logrus.Entry { return p.host.log.WithField("plugin", p.name) }
