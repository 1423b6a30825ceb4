package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/validation"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
)

// Host keeps a set of plugins running; it is the component "plugins".
//
//	Apply, plugins directory (watch.go) -> plugin (plugin.go: calls) <- supervisor (supervisor.go: when to start,
//	                                              |                         |    replace, stop)
//	                                       instance.go: calls in flight -> plugins/process: one process
type Host struct {
	opts         Options
	log          *logrus.Entry
	descriptions descriptions
	launcher     *process.Launcher

	mu         sync.Mutex
	configured []*Spec         // Options.Specs or of the last Apply
	wanted     []*plugin       // in the order of Set.Plugins
	leaving    []*plugin       // no longer wanted, finishing their calls
	run        func(*plugin)   // supervises a plugin; nil while Run does not run
	users      users           // of plugins with AutoUID
	ignored    map[string]bool // warnings that have been logged
	subscribed map[*subscriber]plugins.Kind
	calls      lifecycle.Goroutines // of subscribers; they end with Run
}

var _ plugins.Set = (*Host)(nil)

// New returns a host. The set of plugins is known at once; their processes start with Run.
func New(opts Options) *Host {
	h := &Host{opts: opts, log: opts.Log, ignored: map[string]bool{}, subscribed: map[*subscriber]plugins.Kind{}}
	if h.log == nil {
		h.log = logrus.NewEntry(logrus.StandardLogger())
	}
	h.descriptions = descriptions{dir: filepath.Join(opts.DataDir, "plugins", "state"), validate: opts.Validate, log: h.log}
	h.launcher = process.NewLauncher(process.Options{DataDir: opts.DataDir, RunDir: opts.RunDir, NodeName: opts.NodeName,
		Validate: opts.Validate, Credentials: opts.Credentials, Log: h.log})
	h.Apply(opts.Specs)
	return h
}

// Apply replaces the configured plugins by specs; plugins from the plugins directories stay. It does not restart what
// did not change.
func (h *Host) Apply(specs []Spec) {
	h.mu.Lock()
	h.configured = nil
	for _, s := range specs {
		h.configured = append(h.configured, &s)
	}
	h.mu.Unlock()
	h.refresh()
}

// refresh adds, updates and removes plugins according to the configuration and the plugins directories.
func (h *Host) refresh() {
	h.mu.Lock()
	before := h.wanted
	h.wanted = nil
	changed := map[plugins.Kind]bool{}
	for _, spec := range h.specs(before) {
		i := slices.IndexFunc(before, func(p *plugin) bool { return p.name == spec.Name && p.kind == spec.Kind })
		if i < 0 {
			p := newPlugin(h, spec)
			h.wanted = append(h.wanted, p)
			changed[p.kind] = true
			if h.run != nil {
				h.run(p)
			}
			continue
		}
		p := before[i]
		before = slices.Delete(slices.Clone(before), i, i+1)
		h.wanted = append(h.wanted, p)
		if old := p.spec.Swap(spec); old.Settings != spec.Settings {
			changed[p.kind] = true
		}
		p.wake.Send()
	}
	for _, p := range before {
		close(p.gone)
		changed[p.kind] = true
		if h.run != nil {
			h.leaving = append(h.leaving, p)
		}
	}
	h.mu.Unlock()
	for kind := range changed {
		h.notify(kind)
	}
}

// specs returns the configured plugins, then those from the directories; the first of a name wins. before are the
// plugins so far. h.mu is held.
func (h *Host) specs(before []*plugin) []*Spec {
	var out []*Spec
	// The configuration may name a file of a plugins directory.
	found := slices.DeleteFunc(h.directorySpecs(before), func(s *Spec) bool {
		return slices.ContainsFunc(h.configured, func(c *Spec) bool { return c.Path == s.Path })
	})
	for _, spec := range append(slices.Clone(h.configured), found...) {
		if err := checkSpec(spec); err != nil {
			h.ignore(fmt.Sprintf("plugin %q of %s is ignored: %v", spec.Name, spec.Source, err))
			continue
		}
		if i := slices.IndexFunc(out, func(s *Spec) bool { return s.Name == spec.Name }); i >= 0 {
			h.ignore(fmt.Sprintf("plugin %s of %s is ignored: %s has one of that name", spec.Name, spec.Source, out[i].Source))
			continue
		}
		if err := h.users.choose(spec); err != nil {
			h.ignore(fmt.Sprintf("plugin %s of %s is ignored: %v", spec.Name, spec.Source, err))
			continue
		}
		out = append(out, spec)
	}
	return out
}

// checkSpec refuses names that cannot be file names, unknown kinds, relative paths and unknown capabilities.
func checkSpec(s *Spec) error {
	if errs := validation.IsDNS1123Subdomain(s.Name); len(errs) > 0 || len(s.Name) > 63 {
		return errors.New("a name has at most 63 lower case letters, digits, '-' and '.', and begins and ends with a letter or digit")
	}
	if !slices.Contains(plugins.Kinds, s.Kind) {
		return fmt.Errorf("unknown kind %q: use one of %v", s.Kind, plugins.Kinds)
	}
	if !filepath.IsAbs(s.Path) {
		return fmt.Errorf("the path %q is not absolute", s.Path)
	}
	_, err := s.Capabilities()
	return err
}

// ignore logs why a plugin or file is ignored, once.
func (h *Host) ignore(line string) {
	if !h.ignored[line] {
		h.ignored[line] = true
		h.log.Warn(line)
	}
}

// Plugins implements plugins.Set.
func (h *Host) Plugins(kind plugins.Kind) []plugins.Plugin {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []plugins.Plugin
	for _, p := range h.wanted {
		if p.kind == kind {
			out = append(out, p)
		}
	}
	return out
}

// States returns the states of all plugins, including those that are draining.
func (h *Host) States() []State {
	h.mu.Lock()
	all := slices.Concat(h.wanted, h.leaving)
	h.mu.Unlock()
	var out []State
	for _, p := range all {
		out = append(out, p.State())
	}
	return out
}

// Restart replaces the process of a plugin, or starts one at once if there is none. It does not wait for the new
// process.
func (h *Host) Restart(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for _, p := range h.wanted {
		if p.name == name {
			p.mu.Lock()
			p.restart = true
			p.mu.Unlock()
			p.wake.Send()
			return nil
		}
		names = append(names, p.name)
	}
	if len(names) == 0 {
		return fmt.Errorf("there is no plugin %q: no plugin is configured", name)
	}
	return fmt.Errorf("there is no plugin %q: there are %s", name, strings.Join(names, ", "))
}

// Subscribe implements plugins.Set.
func (h *Host) Subscribe(kind plugins.Kind, changed func()) (cancel func()) {
	s := &subscriber{changed: changed, calls: &h.calls}
	h.mu.Lock()
	h.subscribed[s] = kind
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		delete(h.subscribed, s)
		h.mu.Unlock()
		s.end()
	}
}

func (h *Host) notify(kind plugins.Kind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, of := range h.subscribed {
		if of == kind {
			s.notify()
		}
	}
}

// subscriber calls changed in a goroutine of the Host that ends when there is nothing more to report.
type subscriber struct {
	changed func()
	calls   *lifecycle.Goroutines

	mu      sync.Mutex
	pending bool
	ended   bool
	running bool // a call is under way
}

func (s *subscriber) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = true
	if !s.running && !s.ended {
		s.running = true
		s.calls.Go(s.call)
	}
}

func (s *subscriber) call() {
	for {
		s.mu.Lock()
		if !s.pending || s.ended {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.pending = false
		s.mu.Unlock()
		s.changed()
	}
}

// end lets no further call begin. It does not wait for one under way, which may be the caller of cancel.
func (s *subscriber) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// supervisor returns a function that supervises a plugin in a goroutine of wg, until ctx ends or the plugin is removed.
func (h *Host) supervisor(ctx context.Context, wg *sync.WaitGroup) func(*plugin) {
	return func(p *plugin) {
		wg.Go(func() {
			p.supervise(ctx)
			h.mu.Lock()
			h.leaving = slices.DeleteFunc(h.leaving, func(other *plugin) bool { return other == p })
			h.mu.Unlock()
		})
	}
}

// createDirs creates the directories: one per kind for executables, and the launcher's.
func (h *Host) createDirs() error {
	for _, kind := range plugins.Kinds {
		if err := os.MkdirAll(h.kindDir(kind), 0o700); err != nil {
			return fmt.Errorf("plugins: %w", err)
		}
	}
	if err := h.launcher.CreateDirs(); err != nil {
		return fmt.Errorf("plugins: %w", err)
	}
	return nil
}
