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
)

const (
	firstRetry   = 200 * time.Millisecond // each further one takes twice as long
	maxRetry     = time.Minute
	servingRetry = 5 * time.Second // the most for one that did get ready: between its crashes it serves
	giveUpAfter  = 5               // starts in a row that did not get ready
	stableAfter  = 10 * time.Second
	checkEvery   = 5 * time.Second
	checkAgain   = time.Second // at most this often when calls have no answer
)

// patience is how long a process that was replaced may finish its calls: a little more than a call of the kind may take.
var patience = map[plugins.Kind]time.Duration{
	plugins.Admission:  30 * time.Second,
	plugins.Scheduling: time.Second,
	plugins.Storage:    2 * time.Minute,
}

// errUnchanged ends a replacement: file and settings are those of the process that runs.
var errUnchanged = errors.New("nothing has changed")

// supervisor keeps one plugin running. Everything here is touched by its goroutine only.
type supervisor struct {
	*plugin
	attempt  *attempt // under way; nil: none
	again    bool     // start anew once the attempt has ended
	force    bool     // even if nothing has changed
	retry    *time.Timer
	failures int    // starts in a row without a stable process
	served   bool   // one of them got ready
	told     string // the last failure that was logged
	refused  wanted // the replacement that failed last: it is not tried again

	misses    int // health checks in a row
	lastCheck time.Time
	checking  bool
	verdicts  chan verdict

	drains sync.WaitGroup
}

// attempt is a start under way.
type attempt struct {
	wanted
	cancel func()
	result chan result // has room for it
}

type result struct {
	i   *instance
	exe fileID // that was verified
	err error
}

// wanted is what a process is made from.
type wanted struct {
	spec *Spec
	exe  fileID
}

// same tells whether a process of one does for the other: neither name, source nor settings of calls are told to it.
func (w wanted) same(other wanted) bool {
	if w.spec == nil || other.spec == nil || w.exe != other.exe {
		return false
	}
	a, b := *w.spec, *other.spec
	for _, s := range []*Spec{&a, &b} {
		s.Source, s.Settings, s.Builtin = "", plugins.Settings{}, false
	}
	return reflect.DeepEqual(a, b)
}

type verdict struct {
	i   *instance
	err error
}

// supervise runs until ctx ends or the plugin is no longer wanted.
func (p *plugin) supervise(ctx context.Context) {
	defer close(p.ended)
	s := &supervisor{plugin: p, verdicts: make(chan verdict, 1), retry: time.NewTimer(time.Hour)}
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
			died = serving.dead()
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
		case v := <-s.verdicts:
			s.judge(ctx, v)
		}
	}
}

// now is what is wanted, and the file that is there.
func (s *supervisor) now() wanted {
	spec := s.spec.Load()
	return wanted{spec, statID(spec.Path)}
}

// reconsider looks whether what runs is what is wanted.
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
	case serving != nil && now.same(wanted{serving.spec, *serving.exe.Load()}), serving != nil && now.same(s.refused):
		return
	case serving == nil && now.same(s.refused): // it waits for its next try
		return
	}
	s.failures, s.told = 0, ""
	s.begin(ctx, restart)
}

// begin starts a process. With one that serves it is a replacement, which ends as errUnchanged if it would be the same.
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

// attempt verifies and starts.
func (h *Host) attempt(ctx context.Context, spec *Spec, serving *instance, force bool) result {
	exe, err := verify(spec, h.opts.DataDir)
	if err != nil {
		return result{err: err}
	}
	if serving != nil && !force && exe.sha256 == serving.sha256 && (wanted{spec: spec}).same(wanted{spec: serving.spec}) {
		exe.file.Close()
		return result{exe: exe.id, err: errUnchanged}
	}
	i, err := h.start(ctx, spec, exe)
	return result{i, exe.id, err}
}

// started takes the result of an attempt.
func (s *supervisor) started(ctx context.Context, r result) {
	attempt := s.attempt
	s.attempt = nil
	attempt.cancel()
	serving := s.current.Load()
	if s.again {
		force := s.force
		s.again, s.force = false, false
		if r.i != nil {
			s.finish(r.i)
		}
		s.begin(ctx, force)
		return
	}
	switch {
	case r.err == errUnchanged && serving == nil: // it has ended meanwhile
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

// serve makes a process the one that is called.
func (s *supervisor) serve(ctx context.Context, i *instance) {
	s.host.descriptions.save(i.spec, i.description)
	s.description.Store(i.description)
	s.mu.Lock()
	s.state.Starts++
	s.mu.Unlock()
	s.served, s.told, s.misses = true, "", 0
	before := s.current.Swap(i)
	s.set(Ready, note{})
	log := s.log().WithField("pid", i.launcher.started().pid)
	if before == nil {
		log.Infof("ready: version %q, sha256 %s", i.description.GetVersion(), short(i.sha256))
		s.changed(PluginReady)
	} else {
		log.Infof("replaced: version %q, sha256 %s, now serves instead of sha256 %s", i.description.GetVersion(), short(i.sha256), short(before.sha256))
		s.changed(PluginReplaced)
		s.drains.Go(func() {
			before.drain(ctx, patience[s.kind])
			s.finish(before)
		})
	}
	s.settle()
}

// keep is what becomes of a replacement that failed.
func (s *supervisor) keep(err error) {
	serving := s.current.Load()
	n := because("its replacement %s; keeps running sha256 "+short(serving.sha256), err)
	s.log().Error(n.message)
	s.set(Ready, n)
	s.tell(PluginFailed)
}

// failed is what becomes of a plugin without a process: it waits for the next try.
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
	n := because(fmt.Sprintf("%%s; next try in %v", delay), reason)
	s.set(phase, n)
	if reason.Error() == s.told {
		s.log().Debug(n.message)
	} else {
		s.log().Error(n.message)
	}
	s.told = reason.Error()
	s.changed(event)
	s.settle()
}

// died is what becomes of a process that ended by itself, or was killed.
func (s *supervisor) died(i *instance) {
	s.current.CompareAndSwap(i, nil)
	reason, event := i.obituary(), PluginFailed
	switch {
	case i.outOfMemory():
		event = PluginOOM
	case i.launcher.started().endedByUs():
		reason = fmt.Errorf("did not answer two health checks of %v: killed", healthTimeout)
	}
	if time.Since(i.since) > stableAfter {
		s.failures, s.told = 0, ""
	}
	s.finish(i)
	if s.attempt != nil { // a replacement is under way, and will serve
		n := because("%s", reason)
		s.set(Starting, n)
		s.log().Error(n.message)
		s.changed(event)
		return
	}
	s.failed(reason, event)
}

// check asks the process whether it is well.
func (s *supervisor) check(ctx context.Context, i *instance) {
	if i == nil || s.checking {
		return
	}
	s.checking, s.lastCheck = true, time.Now()
	go func() { s.verdicts <- verdict{i, i.checkHealth(ctx)} }()
}

// judge takes the answer: after one miss calls fail at once, after two the process is killed.
func (s *supervisor) judge(ctx context.Context, v verdict) {
	s.checking = false
	if v.i != s.current.Load() || ctx.Err() != nil {
		return
	}
	if v.err == nil {
		if s.misses = 0; v.i.unhealthy.Swap(false) {
			s.set(Ready, note{})
			s.log().Info("answers again")
			s.changed(PluginReady)
		}
		return
	}
	s.misses++
	if s.misses > 1 {
		v.i.launcher.kill()
		return
	}
	n := say("did not answer a health check of %v", healthTimeout)
	v.i.unhealthy.Store(true)
	s.set(Unhealthy, n)
	s.log().Warn(n.message)
	s.changed(PluginUnhealthy)
	s.check(ctx, v.i)
}

// leave ends everything: at once with ctx, else when the calls have ended.
func (s *supervisor) leave(ctx context.Context) {
	if s.attempt != nil {
		s.attempt.cancel()
		if r := <-s.attempt.result; r.i != nil {
			s.finish(r.i)
		}
	}
	if i := s.current.Swap(nil); i != nil {
		s.set(Draining, say("it is no longer wanted"))
		i.drain(ctx, patience[s.kind])
		s.finish(i)
	}
	s.drains.Wait()
	if s.checking {
		<-s.verdicts
	}
	s.settle()
}

// finish ends a process that is called no more.
func (s *supervisor) finish(i *instance) {
	if err := i.end(); err != nil {
		s.log().WithError(err).Warn("what its process had is not all removed")
	}
}

// settle tells that the first start has an outcome.
func (s *supervisor) settle() {
	select {
	case <-s.settled:
	default:
		close(s.settled)
	}
}

// changed tells those who call the plugin and those who report.
func (s *supervisor) changed(reason string) {
	s.host.notify(s.kind)
	s.tell(reason)
}

func (s *supervisor) tell(reason string) {
	if observe := s.host.opts.Observe; observe != nil {
		observe.Changed(s.State(), reason)
	}
}

// log is of the plugin.
func (p *plugin) log() *logrus.Entry { return p.host.log.WithField("plugin", p.name) }
