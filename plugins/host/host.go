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
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/validation"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/runtime/cgroups"
)

// socketDirName is the directory in the run directory with sockets and records. It is short, as paths of sockets must be.
const socketDirName = "p"

// Host keeps a set of plugins running; it is the component "plugins".
//
//	Apply, plugins directory (watch.go) -> plugin (plugin.go: calls) <- supervisor (supervisor.go: when to start, replace, end)
//	                                                                        |
//	      verify.go -> instance.go: one process, its handshake -> runner.go for go-plugin -> spawn.go, runtime/cgroups
type Host struct {
	opts         Options
	log          *logrus.Entry
	descriptions descriptions
	generation   atomic.Uint64

	mu         sync.Mutex
	configured []*Spec   // Options.Specs or of the last Apply
	wanted     []*plugin // in the order of Set.Plugins
	leaving    []*plugin // no longer wanted, finishing their calls
	run        func(*plugin)
	uids       map[string]int64 // of plugins with AutoUID, by name: as long as we run, nobody else gets them
	ignored    map[string]bool  // what was said of files and entries that are no plugins, once
	subscribed map[*subscriber]plugins.Kind

	makeGroups sync.Once
	parent     *cgroups.Parent
}

var _ plugins.Set = (*Host)(nil)

// New makes a host, whose plugins start with Run. The set is known from now on.
func New(opts Options) *Host {
	h := &Host{opts: opts, log: opts.Log, uids: map[string]int64{}, ignored: map[string]bool{}, subscribed: map[*subscriber]plugins.Kind{}}
	if h.log == nil {
		h.log = logrus.NewEntry(logrus.StandardLogger())
	}
	h.descriptions = descriptions{dir: filepath.Join(opts.DataDir, "plugins", "state"), validate: opts.Validate, log: h.log}
	h.Apply(opts.Specs)
	return h
}

// Apply makes these the plugins that are wanted beside those in the plugins directory. What did not change is not touched.
func (h *Host) Apply(specs []Spec) {
	h.mu.Lock()
	h.configured = nil
	for _, s := range specs {
		h.configured = append(h.configured, &s)
	}
	h.mu.Unlock()
	h.refresh()
}

// refresh compares the plugins with what is wanted.
func (h *Host) refresh() {
	h.mu.Lock()
	before := h.wanted
	h.wanted = nil
	changed := map[plugins.Kind]bool{}
	for _, spec := range h.specs() {
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
		signal(p.wake)
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

// specs are the configured ones, then those of the directory; the first of a name wins. h.mu is held.
func (h *Host) specs() []*Spec {
	var out []*Spec
	// A file of the directory may be what the configuration names.
	found := slices.DeleteFunc(h.directorySpecs(), func(s *Spec) bool {
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
		if err := h.chooseUID(spec); err != nil {
			h.ignore(fmt.Sprintf("plugin %s of %s is ignored: %v", spec.Name, spec.Source, err))
			continue
		}
		out = append(out, spec)
	}
	return out
}

// The users of plugins with AutoUID: of numbers that systemd's list of them has as unused, on any distribution
// (systemd.io/UIDS-GIDS), as those of pods and of services with DynamicUser are others.
const (
	FirstAutoUID = 61000
	LastAutoUID  = 61183
)

// chooseUID gives a plugin with AutoUID its number. h.mu is held.
func (h *Host) chooseUID(spec *Spec) error {
	if spec.Limits.UID == nil || *spec.Limits.UID != AutoUID {
		return nil
	}
	uid, ok := h.uids[spec.Name]
	if !ok {
		uid = FirstAutoUID + int64(len(h.uids))
		if uid > LastAutoUID {
			return fmt.Errorf("there are no more users for limits.uid auto: all from %d to %d are taken, restart the server", FirstAutoUID, LastAutoUID)
		}
		h.uids[spec.Name] = uid
	}
	spec.Limits.UID = &uid
	return nil
}

// checkSpec refuses what would not do as a name of files, and paths that depend on where the server was started.
func checkSpec(s *Spec) error {
	if errs := validation.IsDNS1123Subdomain(s.Name); len(errs) > 0 || len(s.Name) > 63 {
		return errors.New("a name has at most 63 lower case letters, digits, '-' and '.', and begins and ends with a letter or digit")
	}
	if !slices.Contains(plugins.Kinds, s.Kind) {
		return fmt.Errorf("there is no kind %q: use one of %v", s.Kind, plugins.Kinds)
	}
	if !filepath.IsAbs(s.Path) {
		return fmt.Errorf("the path %q is not absolute", s.Path)
	}
	_, err := s.capabilities()
	return err
}

// ignore says what is ignored, once.
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

// States tells of all plugins, those that are leaving included.
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

// Restart replaces the process of a plugin, or starts one at once where there is none.
func (h *Host) Restart(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for _, p := range h.wanted {
		if p.name == name {
			p.mu.Lock()
			p.restart = true
			p.mu.Unlock()
			signal(p.wake)
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
	s := &subscriber{changed: changed}
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

// subscriber is called in a goroutine that lives as long as there is something to tell.
type subscriber struct {
	changed func()

	mu      sync.Mutex
	pending bool
	ended   bool
	running chan struct{} // nil: nobody calls; closed when the call has ended
}

func (s *subscriber) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = true
	if s.running == nil && !s.ended {
		s.running = make(chan struct{})
		go s.call()
	}
}

func (s *subscriber) call() {
	for {
		s.mu.Lock()
		if !s.pending || s.ended {
			close(s.running)
			s.running = nil
			s.mu.Unlock()
			return
		}
		s.pending = false
		s.mu.Unlock()
		s.changed()
	}
}

// end lets no call begin any more. One that is under way may still be: it could be the one that cancels.
func (s *subscriber) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// groups is where processes get their limits, made with the first; nil where this host lets us limit nothing.
func (h *Host) groups() *cgroups.Parent {
	h.makeGroups.Do(func() {
		var err error
		if h.parent, err = cgroups.NewParent(cgroupName(h.opts.DataDir)); err != nil {
			h.log.WithError(err).Warn("plugins run without limits of memory, CPU and processes: this host's cgroups cannot be used")
			return
		}
		if missing := h.parent.Missing(); len(missing) > 0 {
			h.log.Warnf("plugins run without some limits: this host has no cgroup controller for %s", strings.Join(missing, ", "))
		}
	})
	return h.parent
}

func (h *Host) socketDir() string { return filepath.Join(h.opts.RunDir, socketDirName) }

// attend supervises a plugin in a goroutine of wg. h.mu is held.
func (h *Host) attend(ctx context.Context, wg *sync.WaitGroup) func(*plugin) {
	return func(p *plugin) {
		wg.Go(func() {
			p.supervise(ctx)
			h.mu.Lock()
			h.leaving = slices.DeleteFunc(h.leaving, func(other *plugin) bool { return other == p })
			h.mu.Unlock()
		})
	}
}

// makeDirs makes the directories that plugins need: one per kind for the operator, and that of the sockets.
func (h *Host) makeDirs() error {
	for _, kind := range plugins.Kinds {
		if err := os.MkdirAll(h.kindDir(kind), 0o700); err != nil {
			return fmt.Errorf("plugins: %w", err)
		}
	}
	if err := os.MkdirAll(h.socketDir(), 0o711); err != nil {
		return fmt.Errorf("plugins: %w", err)
	}
	return nil
}
