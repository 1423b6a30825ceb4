package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/cap"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"kubelith.io/kubelith/base/oneline"
)

// Plugin is one entry of `plugins:`: an executable that extends the cluster, and how to run it.
type Plugin struct {
	Name          string
	Kind          string // admission, scheduling or storage
	Path          string // of the executable
	Args          []string
	Env           []string // NAME=value
	SHA256        string   // of the executable in lower-case hex; empty: not checked
	FailurePolicy string   // Fail or Ignore; empty: what the plugin declares
	Timeout       time.Duration
	Config        json.RawMessage // for the plugin itself; nil when there is none
	Limits        PluginLimits

	File string // the configuration file with the entry
	Line int
}

// PluginLimits are what a plugin's processes may use; empty means Kubelith's default.
type PluginLimits struct {
	Memory, CPU string // quantities; Memory also "none"
	PIDs        int64  // processes and threads; -1: any number
	UID, GID    *int64 // UID may be AutoUID
	// Capabilities are all that it may have, without "CAP_"; nil: the default of its kind.
	Capabilities []string
}

// Source is where the plugin is configured, for messages.
func (p *Plugin) Source() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// NoLimit is the Memory of a plugin without a memory limit.
const NoLimit = "none"

// AutoUID is the UID of a plugin that gets its own user; the configuration calls it auto.
const AutoUID = -1

// The range of users for auto; the same as in plugins/host.
const (
	firstAutoUID = 61000
	lastAutoUID  = 61183
)

// nobody is the user that daemons, NFS and other namespaces share: any process that runs as nobody can read the memory
// and files of all the others.
const nobody = 65534

func pluginKinds() []string     { return []string{"admission", "scheduling", "storage"} }
func failurePolicies() []string { return []string{"Fail", "Ignore"} }

// plugins decodes the list `plugins:`.
func (d document) plugins(p pair) ([]Plugin, error) {
	if p.value.Kind != yaml.SequenceNode {
		return nil, d.errorf(p.value, "plugins must be a list: begin each plugin with \"- name: NAME\"")
	}
	var errs []error
	all := make([]Plugin, 0, len(p.value.Content))
	for _, item := range p.value.Content {
		plugin := Plugin{File: d.file, Line: item.Line}
		if err := d.mapping("a plugin", item, plugin.keys(d)); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, plugin)
	}
	return all, errors.Join(errs...)
}

// setter sets a field to the value of a key.
type setter func(p pair) error

// keys are the keys of an entry of plugins.
func (p *Plugin) keys(d document) map[string]setter {
	return map[string]setter{
		"name":          d.toString(&p.Name),
		"kind":          d.toString(&p.Kind),
		"path":          d.toString(&p.Path),
		"args":          d.toStrings(&p.Args),
		"env":           d.toStrings(&p.Env),
		"sha256":        d.toString(&p.SHA256),
		"failurePolicy": d.toString(&p.FailurePolicy),
		"timeout":       d.toDuration(&p.Timeout),
		"config":        d.toJSON(&p.Config),
		"limits": func(limits pair) error {
			return d.mapping("limits", limits.value, map[string]setter{
				"memory": d.toQuantity(&p.Limits.Memory),
				"cpu":    d.toQuantity(&p.Limits.CPU),
				"pids":   d.toInt(&p.Limits.PIDs),
				"uid":    d.toUID(&p.Limits.UID),
				"gid":    d.toOptionalInt(&p.Limits.GID),
				"capabilities": func(p2 pair) (err error) {
					p.Limits.Capabilities, err = d.texts(p2)
					return err
				},
			})
		},
	}
}

// mapping hands each key of n to its setter; what names n in messages.
func (d document) mapping(what string, n *yaml.Node, keys map[string]setter) error {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return d.errorf(n, "%s must be settings in the form \"key: value\"", what)
	}
	known := make([]string, 0, len(keys))
	for key := range keys {
		known = append(known, key)
	}
	slices.Sort(known)
	seen := map[string]int{}
	var errs []error
	for i := 0; i < len(n.Content); i += 2 {
		p := pair{n.Content[i], n.Content[i+1]}
		for p.value.Kind == yaml.AliasNode {
			p.value = p.value.Alias
		}
		key := p.key.Value
		set, ok := keys[key]
		switch line, twice := seen[key]; {
		case !ok:
			errs = append(errs, d.errorf(p.key, "unknown key %q of %s%s", key, what, suggestion(key, known)))
		case twice:
			errs = append(errs, d.errorf(p.key, "key %q is already given in line %d: remove one", key, line))
		case p.value.Tag == "!!null":
			errs = append(errs, d.errorf(p.key, "%s has no value: give it one or remove the line", key))
		default:
			seen[key] = p.key.Line
			errs = append(errs, set(p))
		}
	}
	return errors.Join(errs...)
}

func (d document) toString(dst *string) setter {
	return func(p pair) (err error) {
		*dst, err = d.text(p.key.Value, p.value)
		return err
	}
}

func (d document) toStrings(dst *[]string) setter {
	return func(p pair) (err error) {
		*dst, err = d.texts(p)
		return err
	}
}

func (d document) toInt(dst *int64) setter {
	return func(p pair) error {
		if p.value.Tag != "!!int" || p.value.Decode(dst) != nil {
			return d.errorf(p.value, "%s must be a whole number, without quotes", p.key.Value)
		}
		return nil
	}
}

func (d document) toOptionalInt(dst **int64) setter {
	return func(p pair) error {
		*dst = new(int64)
		return d.toInt(*dst)(p)
	}
}

// toUID accepts the number of a user, or "auto".
func (d document) toUID(dst **int64) setter {
	return func(p pair) error {
		if p.value.Tag == "!!str" && p.value.Value == "auto" {
			auto := int64(AutoUID)
			*dst = &auto
			return nil
		}
		if d.toOptionalInt(dst)(p) != nil || **dst < 0 {
			return d.errorf(p.value, "uid must be auto, or the number of a user")
		}
		return nil
	}
}

func (d document) toDuration(dst *time.Duration) setter {
	return func(p pair) error {
		text, err := d.text(p.key.Value, p.value)
		if err != nil {
			return err
		}
		if *dst, err = time.ParseDuration(text); err != nil || *dst <= 0 {
			return d.errorf(p.value, "%s %q is not a duration: write a number with its unit, as in 500ms or 2s", p.key.Value, text)
		}
		return nil
	}
}

// toQuantity accepts a number too: cpu: 0.5 is as clear as cpu: 500m.
func (d document) toQuantity(dst *string) setter {
	return func(p pair) error {
		if p.value.Kind != yaml.ScalarNode || !slices.Contains([]string{"!!str", "!!int", "!!float"}, p.value.Tag) {
			return d.errorf(p.value, "%s must be a quantity, as in 64Mi or 500m", p.key.Value)
		}
		*dst = p.value.Value
		return nil
	}
}

// toJSON converts the plugin's own configuration, which only the plugin understands.
func (d document) toJSON(dst *json.RawMessage) setter {
	return func(p pair) error {
		plainDates(p.value)
		var value any
		if err := p.value.Decode(&value); err != nil {
			// "yaml: unmarshal errors:\n  line 3: ..."
			message := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:")
			return d.errorf(p.value, "%s: %s", p.key.Value, oneline.Of(message))
		}
		out, err := json.Marshal(value)
		if err != nil { // a key that is not a string, or a number such as .nan
			return d.errorf(p.value, "%s cannot be written as JSON, which the plugin gets: keys must be strings and numbers finite", p.key.Value)
		}
		*dst = out
		return nil
	}
}

// plainDates turns YAML dates into strings: JSON has no dates, and the plugin must see the original text.
func plainDates(n *yaml.Node) {
	if n.Tag == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		plainDates(child)
	}
}

// validatePlugins checks what can be known without the executables.
func validatePlugins(p *problems, all []Plugin) {
	names, uids := map[string]int{}, map[int64]int{}
	for i := range all {
		plugin := &all[i]
		*p = append(*p, plugin.problems()...)
		if line, twice := names[plugin.Name]; twice && plugin.Name != "" {
			*p = append(*p, plugin.problem("the plugin in line %d has the same name: rename one of them", line))
		} else {
			names[plugin.Name] = plugin.Line
		}
		if uid := plugin.Limits.UID; uid != nil && *uid > 0 {
			if line, twice := uids[*uid]; twice {
				*p = append(*p, plugin.problem("limits: the plugin in line %d has the uid %d too, and each could read the other's key: write uid: auto", line, *uid))
			}
			uids[*uid] = plugin.Line
		}
	}
}

// Shared returns the plugins that run as the user nobody, which other processes on the host may use too.
func Shared(all []Plugin) []Plugin {
	return slices.DeleteFunc(slices.Clone(all), func(p Plugin) bool { return p.Limits.UID == nil || *p.Limits.UID != nobody })
}

// problem is one line about a plugin.
func (p *Plugin) problem(format string, args ...any) error {
	return fmt.Errorf("%s: plugin %q: %s", p.Source(), p.Name, fmt.Sprintf(format, args...))
}

// The longest time that a request may wait for a plugin: upstream's limit for webhooks.
const maxCallTimeout = 30 * time.Second

func (p *Plugin) problems() []error {
	var out []error
	add := func(format string, args ...any) { out = append(out, p.problem(format, args...)) }
	// The name is part of file names, host names, metrics and a condition's type.
	if errs := validation.IsDNS1123Label(p.Name); p.Name == "" {
		add("name is missing: begin the plugin with \"- name: NAME\"")
	} else if len(errs) > 0 {
		add("the name must be at most 63 lower-case letters, digits and '-', beginning and ending with a letter or digit")
	}
	switch {
	case p.Kind == "":
		add("kind is missing: use one of %s", strings.Join(pluginKinds(), ", "))
	case !slices.Contains(pluginKinds(), p.Kind):
		add("unknown kind %q%s", p.Kind, suggestion(p.Kind, pluginKinds()))
	}
	switch {
	case p.Path == "":
		add("path is missing: name the plugin's executable")
	case !filepath.IsAbs(p.Path):
		add("path %q is not absolute: begin it with /", p.Path)
	}
	if p.SHA256 != "" && !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(p.SHA256) {
		add("sha256 %q is not a SHA-256 sum: write the 64 lower-case hex digits that sha256sum prints", p.SHA256)
	}
	switch {
	case p.FailurePolicy == "":
	case p.Kind == "storage":
		add("failurePolicy has no meaning for storage, whose calls are retried: remove it")
	case !slices.Contains(failurePolicies(), p.FailurePolicy):
		add("unknown failurePolicy %q%s", p.FailurePolicy, suggestion(p.FailurePolicy, failurePolicies()))
	}
	if p.Timeout > maxCallTimeout && p.Kind != "storage" {
		add("timeout %s is longer than requests may wait: use at most %s", p.Timeout, maxCallTimeout)
	}
	for _, e := range p.Env {
		if why := checkVariable(e); why != "" {
			add("env: %s", why)
		}
	}
	for _, why := range p.Limits.Problems() {
		add("limits: %s", why)
	}
	return out
}

// checkVariable returns the error in NAME=value, or "".
func checkVariable(e string) string {
	name, _, ok := strings.Cut(e, "=")
	switch {
	case !ok || !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name):
		return fmt.Sprintf("%q is not a variable: write NAME=value", e)
	case strings.HasPrefix(name, "PLUGIN_") || strings.HasPrefix(name, "KUBELITH_"):
		return fmt.Sprintf("kubelith sets variables such as %s itself: use another name", name)
	case strings.ContainsRune(e, 0):
		return fmt.Sprintf("%q has a zero byte: remove it", e)
	}
	return ""
}

// The least with which a Go program starts.
const (
	minPluginMemory = 16 << 20
	minPluginPIDs   = 16
	minPluginCPU    = 10 // thousandths
)

// Problems returns the errors, one per line.
func (l PluginLimits) Problems() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if memory, err := l.MemoryBytes(); err != nil {
		add("memory %q is not a quantity: write bytes with a unit, as in 64Mi, or %s", l.Memory, NoLimit)
	} else if l.Memory != "" && l.Memory != NoLimit && memory < minPluginMemory {
		add("memory %s is too little for a program to start: use at least 16Mi, or %s", l.Memory, NoLimit)
	}
	if cpu, err := l.MilliCPU(); err != nil {
		add("cpu %q is not a quantity: write CPUs, as in 500m or 2", l.CPU)
	} else if l.CPU != "" && cpu < minPluginCPU {
		add("cpu %s is too little for a program to answer: use at least %dm", l.CPU, minPluginCPU)
	}
	if l.PIDs != 0 && l.PIDs != -1 && l.PIDs < minPluginPIDs {
		add("pids %d is too little for a program to start: use at least %d, or -1 for any number", l.PIDs, minPluginPIDs)
	}
	for _, name := range l.Capabilities {
		if !slices.Contains(capabilities(), name) {
			add("capabilities: there is no %q%s", name, suggestion(name, capabilities()))
		}
	}
	for name, id := range map[string]*int64{"uid": l.UID, "gid": l.GID} {
		if id != nil && !(name == "uid" && *id == AutoUID) && (*id < 0 || *id > 1<<32-2) {
			add("%s %d does not exist: use 0 to %d", name, *id, int64(1<<32-2))
		}
	}
	if l.UID != nil && *l.UID >= firstAutoUID && *l.UID <= lastAutoUID {
		add("uid %d is in the range that auto assigns: write uid: auto", *l.UID)
	}
	slices.Sort(out)
	return out
}

// capabilities are the names of all capabilities, as in a Kubernetes securityContext: without "CAP_".
func capabilities() []string {
	var out []string
	for _, name := range cap.Known() {
		out = append(out, strings.TrimPrefix(name, "CAP_"))
	}
	return out
}

// MemoryBytes is 0 for the default and -1 for no limit.
func (l PluginLimits) MemoryBytes() (int64, error) {
	if l.Memory == NoLimit {
		return -1, nil
	}
	q, err := quantity(l.Memory)
	return q.Value(), err
}

// MilliCPU is in thousandths of a CPU; 0: no limit.
func (l PluginLimits) MilliCPU() (int64, error) {
	q, err := quantity(l.CPU)
	return q.MilliValue(), err
}

func quantity(text string) (resource.Quantity, error) {
	if text == "" {
		return resource.Quantity{}, nil
	}
	return resource.ParseQuantity(text)
}
