package scheduling

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Extension is what a scheduler needs to have plugins: a registry, and profiles that name them.
type Extension struct {
	set     plugins.Set
	log     logrus.FieldLogger
	remotes []*remote // in the order of the set
	cancel  func()

	mu       sync.Mutex
	profiles map[*remote][]*plugin // each in the profiles that have it
}

// New takes the scheduling plugins that the set has now. Close it when the scheduler has ended.
func New(set plugins.Set, log logrus.FieldLogger) *Extension {
	e := &Extension{set: set, log: log, profiles: map[*remote][]*plugin{}}
	pods, figures := &podCache{}, newFigures()
	for _, p := range set.Plugins(plugins.Scheduling) {
		e.remotes = append(e.remotes, newRemote(p, pods, figures, log.WithField("plugin", p.Name())))
	}
	told, answered := map[string]bool{}, map[*remote]uint64{}
	for _, r := range e.remotes {
		answered[r] = r.answering()
	}
	e.cancel = set.Subscribe(plugins.Scheduling, func() {
		e.refresh(told)
		e.wake(answered)
	})
	return e
}

// Close ends the subscription.
func (e *Extension) Close() { e.cancel() }

// refresh finds the plugins of New again: one that the operator has removed is not asked any more. One that is new
// has no place in the scheduler, which the operator is told once.
func (e *Extension) refresh(told map[string]bool) {
	now := map[string]plugins.Plugin{}
	for _, p := range e.set.Plugins(plugins.Scheduling) {
		now[p.Name()] = p
	}
	for _, r := range e.remotes {
		r.use(now[r.name])
		delete(now, r.name)
	}
	for name := range now {
		if !told[name] {
			told[name] = true
			e.log.WithField("plugin", name).Warn("A scheduling plugin that was not there when the scheduler started takes part after the next start.")
		}
	}
}

// wake has the pods tried again that wait for a plugin which another process answers for than at the last time, or none any more.
func (e *Extension) wake(answered map[*remote]uint64) {
	for _, r := range e.remotes {
		now := r.answering()
		if now == 0 || now == answered[r] { // the pods would meet its absence, or hear the same
			continue
		}
		answered[r] = now
		e.mu.Lock()
		in := e.profiles[r]
		e.mu.Unlock()
		for _, p := range in {
			p.tryAgain()
		}
	}
}

// Registry makes the plugins known to the scheduler.
func (e *Extension) Registry() frameworkruntime.Registry {
	out := frameworkruntime.Registry{}
	teams := map[fwk.Handle]*team{} // a handle is a profile's
	for _, r := range e.remotes {
		out[r.name] = func(_ context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			if teams[handle] == nil {
				teams[handle] = &team{}
			}
			p := newPlugin(r, handle, teams[handle])
			e.mu.Lock()
			e.profiles[r] = append(e.profiles[r], p)
			e.mu.Unlock()
			return p, nil
		}
	}
	return out
}

// Profiles returns the profiles with the plugins in them: the default profile has all that it does not name itself, the others
// have those that they name. What is given is not changed. A weight that a profile does not say is the plugin's own.
func (e *Extension) Profiles(given []config.KubeSchedulerProfile) ([]config.KubeSchedulerProfile, error) {
	out := make([]config.KubeSchedulerProfile, len(given))
	for i := range given {
		out[i] = *given[i].DeepCopy()
		if out[i].Plugins == nil {
			out[i].Plugins = &config.Plugins{}
		}
		for _, r := range e.remotes {
			if err := r.enable(&out[i]); err != nil {
				return nil, fmt.Errorf("profile %s: %w", out[i].SchedulerName, err)
			}
		}
	}
	return out, nil
}

// enable puts a plugin into a profile.
func (r *remote) enable(profile *config.KubeSchedulerProfile) error {
	named := func(p config.Plugin) bool { return p.Name == r.name }
	all := &profile.Plugins.MultiPoint
	if i := slices.IndexFunc(all.Enabled, named); i >= 0 {
		if all.Enabled[i].Weight == 0 {
			all.Enabled[i].Weight = r.weight()
		}
		return nil
	}
	if slices.Contains(profile.Plugins.Names(), r.name) {
		return fmt.Errorf("plugin %s: name it under plugins.multiPoint.enabled: filter and score each need two extension points", r.name)
	}
	disabled := func(p config.Plugin) bool { return p.Name == r.name || p.Name == "*" }
	if profile.SchedulerName != corev1.DefaultSchedulerName || slices.ContainsFunc(all.Disabled, disabled) {
		return nil
	}
	all.Enabled = append(all.Enabled, config.Plugin{Name: r.name, Weight: r.weight()})
	return nil
}

// The bounds of what a plugin may ask for.
const (
	maxWeight  = 1000
	maxTimeout = 10 // seconds: a pod waits that long, and all pods behind it
)

// Validate refuses a description that the scheduler cannot work with.
func Validate(_ string, d *pluginv1.Description) error {
	s := d.GetScheduling()
	switch {
	case s == nil:
		return fmt.Errorf("it does not describe a scheduling plugin")
	case !s.GetFilter() && !s.GetScore():
		return fmt.Errorf("it neither filters nor scores")
	case s.GetWeight() < 0 || s.GetWeight() > maxWeight:
		return fmt.Errorf("its weight is %d: want 0 to %d", s.GetWeight(), maxWeight)
	case s.GetTimeout().AsDuration() < 0 || s.GetTimeout().AsDuration().Seconds() > maxTimeout:
		return fmt.Errorf("its timeout is %v: want at most %d s", s.GetTimeout().AsDuration(), maxTimeout)
	}
	return nil
}
