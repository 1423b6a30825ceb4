package admission

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"

	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// source has the hooks of all plugins, of one of the two types, for upstream's webhook plugin.
type source struct {
	opts Options
	pick func(ruleset) []webhook.WebhookAccessor

	mu      sync.Mutex       // guards what rebuild writes
	rules   map[string]built // by the plugin's name
	current atomic.Pointer[[]webhook.WebhookAccessor]
}

// built has the hooks of a plugin and what they were built from.
type built struct {
	plugin      plugins.Plugin
	description *pluginv1.Description
	settings    plugins.Settings
	accessors   []webhook.WebhookAccessor
}

var _ generic.ReloadableSource = (*source)(nil)

func newSource(o Options, pick func(ruleset) []webhook.WebhookAccessor) *source {
	s := &source{opts: o, pick: pick, rules: map[string]built{}}
	s.current.Store(&[]webhook.WebhookAccessor{})
	s.rebuild()
	return s
}

// Webhooks implements generic.Source. It returns the same slice as long as nothing has changed: upstream compares its
// address.
func (s *source) Webhooks() []webhook.WebhookAccessor { return *s.current.Load() }

// HasSynced implements generic.Source: the host has started the plugins before it started the apiserver.
func (s *source) HasSynced() bool { return true }

// RunReloadLoop implements generic.ReloadableSource.
func (s *source) RunReloadLoop(ctx context.Context) {
	cancel := s.opts.Plugins.Subscribe(plugins.Admission, s.rebuild)
	defer cancel()
	s.rebuild() // for changes before Subscribe
	<-ctx.Done()
}

// rebuild updates the hooks. Those of unchanged plugins stay the same objects, as they contain compiled expressions.
func (s *source) rebuild() {
	s.mu.Lock()
	defer s.mu.Unlock()
	rules, all := map[string]built{}, []webhook.WebhookAccessor{}
	for _, p := range s.opts.Plugins.Plugins(plugins.Admission) {
		now := built{plugin: p, description: p.Description(), settings: p.Settings()}
		before, ok := s.rules[p.Name()]
		if ok && before.plugin == p && before.settings == now.settings && proto.Equal(before.description, now.description) {
			now.accessors = before.accessors
		} else {
			now.accessors = s.accessors(p, before)
		}
		rules[p.Name()] = now
		all = append(all, now.accessors...)
	}
	s.rules = rules
	if !slices.Equal(all, *s.current.Load()) {
		s.current.Store(&all)
	}
}

// accessors returns the hooks of a plugin. The host has validated the description, but one that an older version stored
// may be invalid now.
func (s *source) accessors(p plugins.Plugin, before built) []webhook.WebhookAccessor {
	rules, err := rulesOf(p)
	if err != nil {
		s.opts.Log.WithFields(logrus.Fields{"plugin": p.Name(), logrus.ErrorKey: err}).Error("the plugin's hooks are invalid: the previous ones stay in effect")
		if before.plugin != nil {
			return before.accessors
		}
		rules = unknownRules(p)
	}
	return s.pick(rules)
}

// together is a source of plugins' hooks, followed by another source.
type together struct {
	generic.Source
	loops []generic.ReloadableSource
}

func newTogether(ours, theirs generic.ReloadableSource) *together {
	return &together{Source: generic.NewCompositeWebhookSource(ours, theirs), loops: []generic.ReloadableSource{ours, theirs}}
}

// RunReloadLoop implements generic.ReloadableSource.
func (t *together) RunReloadLoop(ctx context.Context) {
	var wait sync.WaitGroup
	for _, s := range t.loops {
		wait.Go(func() { s.RunReloadLoop(ctx) })
	}
	wait.Wait()
}
