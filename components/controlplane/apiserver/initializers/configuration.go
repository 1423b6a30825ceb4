package initializers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/reconcile"
)

var (
	configurationVersion  = schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1alpha1"}
	configurationResource = configurationVersion.WithResource("initializerconfigurations").GroupResource()
)

// configurationPatience is how long the write of a configuration waits for this server to follow it.
const configurationPatience = 2 * time.Second

// Configuration names the initializers of new objects.
// Source: admissionregistration.k8s.io/v1alpha1 of Kubernetes 1.13.
type Configuration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Initializers      []Initializer `json:"initializers,omitempty"`
}

// Initializer acts on new objects that one of the rules matches.
type Initializer struct {
	// Name is fully qualified: podimage.example.com.
	Name  string `json:"name"`
	Rules []Rule `json:"rules,omitempty"`
}

// Rule matches resources; "*" matches all.
type Rule struct {
	APIGroups   []string `json:"apiGroups,omitempty"`
	APIVersions []string `json:"apiVersions,omitempty"`
	Resources   []string `json:"resources,omitempty"`
}

func (r Rule) matches(resource schema.GroupVersionResource) bool {
	in := func(list []string, value string) bool {
		return slices.Contains(list, "*") || slices.Contains(list, value)
	}
	return in(r.APIGroups, resource.Group) && in(r.APIVersions, resource.Version) && in(r.Resources, resource.Resource)
}

// validate checks a configuration as upstream did, and also that no name is there twice.
// Source: ValidateInitializerConfiguration of Kubernetes 1.13.
func (c *Configuration) validate() field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, initializer := range c.Initializers {
		at := field.NewPath("initializers").Index(i)
		errs = append(errs, validation.IsFullyQualifiedName(at.Child("name"), initializer.Name)...)
		if names[initializer.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), initializer.Name))
		}
		names[initializer.Name] = true
		for j, rule := range initializer.Rules {
			errs = append(errs, rule.validate(at.Child("rules").Index(j))...)
		}
	}
	return errs
}

func (r Rule) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		name   string
		values []string
	}{{"apiGroups", r.APIGroups}, {"apiVersions", r.APIVersions}, {"resources", r.Resources}} {
		at := at.Child(list.name)
		if len(list.values) == 0 {
			errs = append(errs, field.Required(at, ""))
		}
		if len(list.values) > 1 && slices.Contains(list.values, "*") {
			errs = append(errs, field.Invalid(at, list.values, `if "*" is present, nothing else may be`))
		}
		for i, value := range list.values {
			if value == "" && list.name != "apiGroups" { // the core group has no name
				errs = append(errs, field.Required(at.Index(i), ""))
			}
		}
	}
	for i, resource := range r.Resources {
		if strings.Contains(resource, "/") {
			errs = append(errs, field.Invalid(at.Child("resources").Index(i), resource, "subresources have no initializers"))
		}
	}
	return errs
}

// configurations are those of the cluster.
type configurations struct {
	// current is sorted by name.
	current atomic.Pointer[[]Configuration]
	// ready is closed when they have been read for the first time, or cannot exist yet.
	ready     chan struct{}
	readyOnce sync.Once

	mu      sync.Mutex          // one set at a time
	changed reconcile.Broadcast // with each change
}

func (c *configurations) init() {
	c.ready = make(chan struct{})
	c.current.Store(&[]Configuration{})
}

func (c *configurations) setReady() { c.readyOnce.Do(func() { close(c.ready) }) }

// none reports whether there is no configuration. Before they have been read, there may be one.
func (c *configurations) none() bool {
	select {
	case <-c.ready:
		return len(*c.current.Load()) == 0
	default:
		return false
	}
}

// wait returns when the configurations have been read.
func (c *configurations) wait(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	default:
	}
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startPatience):
		return fmt.Errorf("the InitializerConfigurations could not be read within %s", startPatience)
	}
}

// namesFor returns the initializers of a new object: by the names of the configurations, and in the order of each.
func (c *configurations) namesFor(resource schema.GroupVersionResource) []string {
	var names []string
	for _, configuration := range *c.current.Load() {
		for _, initializer := range configuration.Initializers {
			matches := slices.ContainsFunc(initializer.Rules, func(r Rule) bool { return r.matches(resource) })
			if matches && !slices.Contains(names, initializer.Name) {
				names = append(names, initializer.Name)
			}
		}
	}
	return names
}

// follow reads the configurations from their storage until stop.
func (c *configurations) follow(s storage.Interface, prefix string, newListFunc func() runtime.Object) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var kept cache.Store
	var informer cache.Controller
	update := func() { c.set(kept.List()) }
	source := cache.ToListerWatcherWithContext(cacher.NewListerWatcher(s, prefix, newListFunc, nil))
	kept, informer = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: source.ListWithContext,
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				w, err := source.WatchWithContext(ctx, options)
				if err != nil {
					return nil, err
				}
				return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
					e.Object = unwrap(e.Object)
					return e, true
				}), nil
			},
		},
		ObjectType: &unstructured.Unstructured{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { update() },
			UpdateFunc: func(any, any) { update() },
			DeleteFunc: func(any) { update() },
		},
	})
	var running sync.WaitGroup
	running.Go(func() {
		// An informer's first attempt fails before the watch cache is filled, and the next comes a second later.
		wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(context.Context) (bool, error) { return s.ReadinessCheck() == nil, nil })
		informer.RunWithContext(ctx)
	})
	running.Go(func() {
		if cache.WaitFor(ctx, "", informer.HasSyncedChecker()) { // WaitForCacheSync would look every 100 ms
			update()
			c.setReady()
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// unwrap returns the object of an event of the watch cache.
func unwrap(o runtime.Object) runtime.Object {
	if c, ok := o.(runtime.CacheableObject); ok {
		return c.GetObject()
	}
	return o
}

// set replaces the configurations.
func (c *configurations) set(objects []any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Configuration, 0, len(objects))
	for _, o := range objects {
		if configuration, err := configurationOf(o.(*unstructured.Unstructured)); err == nil { // the schema has been checked
			all = append(all, *configuration)
		}
	}
	slices.SortFunc(all, func(a, b Configuration) int { return cmp.Compare(a.Name, b.Name) })
	c.current.Store(&all)
	c.changed.Send()
}

func configurationOf(o *unstructured.Unstructured) (*Configuration, error) {
	c := &Configuration{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, c)
	return c, err
}

// reach returns when the configurations contain what was written.
func (c *configurations) reach(ctx context.Context, written runtime.Object) {
	if o, err := meta.Accessor(written); err == nil {
		c.until(ctx, func(all []Configuration) bool {
			return slices.ContainsFunc(all, func(k Configuration) bool {
				return k.UID == o.GetUID() && !older(k.ResourceVersion, o.GetResourceVersion())
			})
		})
	}
}

// leave returns when the configurations no longer contain what was deleted.
func (c *configurations) leave(ctx context.Context, deleted runtime.Object) {
	if o, err := meta.Accessor(deleted); err == nil {
		c.until(ctx, func(all []Configuration) bool {
			return !slices.ContainsFunc(all, func(k Configuration) bool { return k.UID == o.GetUID() })
		})
	}
}

// until waits for a condition, but not for long: the next requests are answered by what this server follows.
func (c *configurations) until(ctx context.Context, holds func([]Configuration) bool) {
	patience := time.After(configurationPatience)
	for {
		changed := c.changed.Next()
		if holds(*c.current.Load()) {
			return
		}
		select {
		case <-changed:
		case <-patience:
			return
		case <-ctx.Done():
			return
		}
	}
}

// older compares resource versions, which are decimal numbers.
func older(a, b string) bool {
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return a < b
}
