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

// Extension adds plugins to a scheduler: a registry, and profiles that name them.
type Extension struct {
	set     plugins.Set
	log     logrus.FieldLogger
	remotes []*remote // in the order of the set
	cancel  func()

	mu        sync.Mutex
	instances map[*remote][]*plugin // one per profile that has the plugin
}

// New uses the scheduling plugins that the set has now. Close it when the scheduler has ended.
func New(set plugins.Set, log logrus.FieldLogger) *Extension {
	e := &Extension{set: set, log: log, instances: map[*remote][]*plugin{}}
	pods, metrics := &podCache{}, newUpdateMetrics()
	for _, p := range set.Plugins(plugins.Scheduling) {
		e.remotes = append(e.remotes, newRemote(p, pods, metrics, log.WithField("plugin", p.Name())))
	}
	warned, answered := map[string]bool{}, map[*remote]uint64{}
	for _, r := range e.remotes {
		answered[r] = r.answering()
	}
	e.cancel = set.Subscribe(plugins.Scheduling, func() {
		e.refresh(warned)
		e.wake(answered)
	})
	return e
}

// Close ends the subscription.
func (e *Extension) Close() { e.cancel() }

// refresh stops calling plugins that the operator has removed. It logs once that a new plugin takes part after the
// scheduler's next start only.
func (e *Extension) refresh(warned map[string]bool) {
	now := map[string]plugins.Plugin{}
	for _, p := range e.set.Plugins(plugins.Scheduling) {
		now[p.Name()] = p
	}
	for _, r := range e.remotes {
		r.use(now[r.name])
		delete(now, r.name)
	}
	for name := range now {
		if !warned[name] {
			warned[name] = true
			e.log.WithField("plugin", name).Warn("this scheduling plugin was added after the scheduler started: it is used from the next start")
		}
	}
}

// wake retries the pods that wait for a plugin if another process of it serves now, or if the plugin was removed.
func (e *Extension) wake(answered map[*remote]uint64) {
	for _, r := range e.remotes {
		now := r.answering()
		if now == 0 || now == answered[r] { // nothing would change for the pods
			continue
		}
		answered[r] = now
		e.mu.Lock()
		in := e.instances[r]
		e.mu.Unlock()
		for _, p := range in {
			p.tryAgain()
		}
	}
}

// Registry returns the plugins as the scheduler's out-of-tree registry.
func (e *Extension) Registry() frameworkruntime.Registry {
	out := frameworkruntime.Registry{}
	profiles := map[fwk.Handle]*profile{} // each profile has its own handle
	for _, r := range e.remotes {
		out[r.name] = func(_ context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			if profiles[handle] == nil {
				profiles[handle] = &profile{}
			}
			p := newPlugin(r, handle, profiles[handle])
			e.mu.Lock()
			e.instances[r] = append(e.instances[r], p)
			e.mu.Unlock()
			return p, nil
		}
	}
	return out
}

// Profiles returns copies of the given profiles with the plugins enabled: all of them in the default profile unless it
// disables them, in the others those that they name. A weight that a profile does not set is the plugin's own.
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

// enable adds a plugin to a profile.
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

// Limits of what a plugin may declare.
const (
	maxWeight  = 1000
	maxTimeout = 10 // seconds; a pod waits that long, and all pods queued behind it
)

// Validate returns an error if the scheduler cannot work with a description.
func Validate(_ string, d *pluginv1.Description) error {
	s := d.GetScheduling()
	switch {
	case s == nil:
		return fmt.Errorf("it does not describe a scheduling plugin")
	case !s.GetFilter() && !s.GetScore():
		return fmt.Errorf("it neither filters nor scores")
	case s.GetWeight() < 0 || s.GetWeight() > maxWeight:
		return fmt.Errorf("its weight is %d: use 0 to %d", s.GetWeight(), maxWeight)
	case s.GetTimeout().AsDuration() < 0 || s.GetTimeout().AsDuration().Seconds() > maxTimeout:
		return fmt.Errorf("its timeout is %v: use at most %d s", s.GetTimeout().AsDuration(), maxTimeout)
	}
	return nil
}
