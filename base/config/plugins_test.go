package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func decodePlugins(t *testing.T, text string) ([]Plugin, error) {
	t.Helper()
	s := Default()
	err := decode("f", []byte(header+"plugins:\n"+text), s)
	return s.Plugins, err
}

func TestPlugins(t *testing.T) {
	got, err := decodePlugins(t, `
- name: labels
  kind: admission
  path: /opt/labels
  args: [--verbose]
  env: [A=b=c, "B="]
  sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  failurePolicy: Ignore
  timeout: 500ms
  config: {since: 2020-01-02, deep: [1, 2.5, {a: ~, b: true}], text: "3"}
  limits: {memory: 64Mi, cpu: 0.5, pids: 20, uid: 0, gid: 7, capabilities: [SYS_ADMIN]}
- kind: storage
  name: disks
  path: &p /opt/disks
  limits: {uid: auto}
`)
	if err != nil {
		t.Fatal(err)
	}
	zero, seven, auto := int64(0), int64(7), int64(AutoUID)
	want := []Plugin{{
		Name: "labels", Kind: "admission", Path: "/opt/labels", Args: []string{"--verbose"}, Env: []string{"A=b=c", "B="},
		SHA256: strings.Repeat("0123456789abcdef", 4), FailurePolicy: "Ignore", Timeout: 500 * time.Millisecond,
		Config: []byte(`{"deep":[1,2.5,{"a":null,"b":true}],"since":"2020-01-02","text":"3"}`),
		Limits: PluginLimits{Memory: "64Mi", CPU: "0.5", PIDs: 20, UID: &zero, GID: &seven, Capabilities: []string{"SYS_ADMIN"}},
		File:   "f", Line: 5,
	}, {Name: "disks", Kind: "storage", Path: "/opt/disks", Limits: PluginLimits{UID: &auto}, File: "f", Line: 15}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
	s := valid()
	s.Plugins = got
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	memory, _ := got[0].Limits.MemoryBytes()
	cpu, _ := got[0].Limits.MilliCPU()
	none, _ := PluginLimits{Memory: NoLimit}.MemoryBytes()
	if memory != 64<<20 || cpu != 500 || none != -1 {
		t.Errorf("memory %d, none %d, cpu %d", memory, none, cpu)
	}
}

func TestPluginsStrict(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"no list":      {"  name: a\n", `f:4: plugins must be a list: begin each plugin with "- name: NAME"`},
		"no mapping":   {"- a\n", `f:4: a plugin must be settings in the form "key: value"`},
		"unknown key":  {"- name: a\n  failurepolicy: Fail\n", `f:5: unknown key "failurepolicy" of a plugin: did you mean "failurePolicy"?`},
		"twice":        {"- name: a\n  name: b\n", `f:5: key "name" is already given in line 4: remove one`},
		"no value":     {"- name:\n", `f:4: name has no value: give it one or remove the line`},
		"number":       {"- name: 7\n", `f:4: name must be a string: put 7 in quotes`},
		"args":         {"- name: a\n  args: -v\n", `f:5: args must be a list: write args: [a, b]`},
		"timeout":      {"- name: a\n  timeout: \"5\"\n", `f:5: timeout "5" is not a duration: write a number with its unit, as in 500ms or 2s`},
		"timeout zero": {"- name: a\n  timeout: 0s\n", `f:5: timeout "0s" is not a duration`},
		"limits":       {"- name: a\n  limits: 64Mi\n", `f:5: limits must be settings in the form "key: value"`},
		"limits key":   {"- name: a\n  limits:\n    ram: 64Mi\n", `f:6: unknown key "ram" of limits: use one of capabilities, cpu, gid, memory, pids, uid`},
		"uid":          {"- name: a\n  limits: {uid: nobody}\n", `f:5: uid must be auto, or the number of a user`},
		"uid below 0":  {"- name: a\n  limits: {uid: -1}\n", `f:5: uid must be auto, or the number of a user`},
		"pids":         {"- name: a\n  limits: {pids: many}\n", `f:5: pids must be a whole number, without quotes`},
		"memory":       {"- name: a\n  limits: {memory: [1]}\n", `f:5: memory must be a quantity, as in 64Mi or 500m`},
		"config key":   {"- name: a\n  config: {1: a}\n", `f:5: config cannot be written as JSON, which the plugin gets: keys must be strings and numbers finite`},
		"config NaN":   {"- name: a\n  config: {a: .nan}\n", `f:5: config cannot be written as JSON`},
		"config twice": {"- name: a\n  config:\n    b: 1\n    b: 2\n", `f:6: config: line 7: mapping key "b" already defined at line 6`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decodePlugins(t, tc.body)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPluginsValidate(t *testing.T) {
	good := func() Plugin {
		return Plugin{Name: "a", Kind: "admission", Path: "/a", File: "f", Line: 7}
	}
	for name, tc := range map[string]struct {
		change func(*Plugin)
		want   string
	}{
		"no name":       {func(p *Plugin) { p.Name = "" }, `f:7: plugin "": name is missing`},
		"name":          {func(p *Plugin) { p.Name = "../x" }, `f:7: plugin "../x": the name must be at most 63 lower-case letters`},
		"long name":     {func(p *Plugin) { p.Name = strings.Repeat("a", 64) }, `the name must be at most 63`},
		"no kind":       {func(p *Plugin) { p.Kind = "" }, `f:7: plugin "a": kind is missing: use one of admission, scheduling, storage`},
		"kind":          {func(p *Plugin) { p.Kind = "admision" }, `unknown kind "admision": did you mean "admission"?`},
		"no path":       {func(p *Plugin) { p.Path = "" }, `path is missing`},
		"relative path": {func(p *Plugin) { p.Path = "bin/a" }, `path "bin/a" is not absolute: begin it with /`},
		"sum":           {func(p *Plugin) { p.SHA256 = "sha256:00" }, `sha256 "sha256:00" is not a SHA-256 sum: write the 64 lower-case hex digits`},
		"policy":        {func(p *Plugin) { p.FailurePolicy = "fail" }, `unknown failurePolicy "fail": did you mean "Fail"?`},
		"no policy":     {func(p *Plugin) { p.Kind, p.FailurePolicy = "storage", "Fail" }, `failurePolicy has no meaning for storage`},
		"timeout":       {func(p *Plugin) { p.Timeout = time.Minute }, `timeout 1m0s is longer than requests may wait: use at most 30s`},
		"variable":      {func(p *Plugin) { p.Env = []string{"1A=b"} }, `env: "1A=b" is not a variable: write NAME=value`},
		"our variable":  {func(p *Plugin) { p.Env = []string{"PLUGIN_X=b"} }, `env: kubelith sets variables such as PLUGIN_X itself`},
		"memory":        {func(p *Plugin) { p.Limits.Memory = "lots" }, `limits: memory "lots" is not a quantity`},
		"little memory": {func(p *Plugin) { p.Limits.Memory = "64" }, `limits: memory 64 is too little for a program to start: use at least 16Mi, or none`},
		"less memory":   {func(p *Plugin) { p.Limits.Memory = "-1" }, `limits: memory -1 is too little`},
		"no memory":     {func(p *Plugin) { p.Limits.Memory = "0" }, `limits: memory 0 is too little`},
		"cpu":           {func(p *Plugin) { p.Limits.CPU = "1m" }, `limits: cpu 1m is too little for a program to answer: use at least 10m`},
		"pids":          {func(p *Plugin) { p.Limits.PIDs = 1 }, `limits: pids 1 is too little for a program to start: use at least 16, or -1 for any number`},
		"uid":           {func(p *Plugin) { p.Limits.UID = new(int64); *p.Limits.UID = 1 << 32 }, `limits: uid 4294967296 does not exist: use 0 to 4294967294`},
		"uid of auto":   {func(p *Plugin) { p.Limits.UID = new(int64(61000)) }, `limits: uid 61000 is in the range that auto assigns: write uid: auto`},
		"last of auto":  {func(p *Plugin) { p.Limits.UID = new(int64(61183)) }, `limits: uid 61183 is in the range`},
		"capability":    {func(p *Plugin) { p.Limits.Capabilities = []string{"CAP_SYS_ADMIN"} }, `limits: capabilities: there is no "CAP_SYS_ADMIN": did you mean "SYS_ADMIN"?`},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := valid(), good()
			tc.change(&p)
			s.Plugins = []Plugin{p}
			err := s.Validate()
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	s, second := valid(), good()
	second.Kind, second.Line = "storage", 11
	s.Plugins = []Plugin{good(), second}
	want := `f:11: plugin "a": the plugin in line 7 has the same name: rename one of them`
	if err := s.Validate(); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// Plugins of one user could read each other's keys.
func TestPluginsOfOneUser(t *testing.T) {
	auto, nobody, root := int64(AutoUID), int64(65534), int64(0)
	with := func(uid *int64) (*Server, error) {
		s := valid()
		s.Plugins = []Plugin{
			{Name: "a", Kind: "admission", Path: "/a", File: "f", Line: 7, Limits: PluginLimits{UID: uid}},
			{Name: "b", Kind: "admission", Path: "/b", File: "f", Line: 11, Limits: PluginLimits{UID: uid}},
		}
		return s, s.Validate()
	}
	for _, uid := range []*int64{nil, &root, &auto} {
		if s, err := with(uid); err != nil || len(Shared(s.Plugins)) > 0 {
			t.Errorf("%v, shared %v", err, Shared(s.Plugins))
		}
	}
	s, err := with(&nobody)
	want := `f:11: plugin "b": limits: the plugin in line 7 has the uid 65534 too, and each could read the other's key: write uid: auto`
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	if n := len(Shared(s.Plugins)); n != 2 {
		t.Errorf("%d plugins are reported to share a user, want 2", n)
	}
}

// A running server applies its plugins, reports what else has changed, and refuses a broken file as a whole.
func TestReload(t *testing.T) {
	file := writeFile(t, header+"logLevel: debug\n")
	s, err := loadServer(t, Flags(), "--config", file)
	if err != nil || s.File != file {
		t.Fatalf("file %q, error %v", s.File, err)
	}
	before, changed, err := Reload(s.File, nil)
	if err != nil || len(changed) > 0 || len(before.Plugins) > 0 {
		t.Fatalf("%+v, %v, %v", before, changed, err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(header + "nodeName: other\nplugins: [{name: a, kind: admission, path: /a}]\n")
	now, changed, err := Reload(s.File, before)
	if err != nil || !reflect.DeepEqual(changed, []string{"nodeName", "logLevel"}) || len(now.Plugins) != 1 {
		t.Errorf("%+v, %v, %v", now, changed, err)
	}
	if _, changed, err = Reload(s.File, now); err != nil || len(changed) > 0 {
		t.Errorf("%v, %v", changed, err)
	}
	for text, want := range map[string]string{
		header + "plugins: [{name: a, kind: moon, path: /a}]\n": `:3: plugin "a": unknown kind "moon"`,
		header + "moon: full\n":                                 `:3: unknown key "moon"`,
	} {
		write(text)
		if _, _, err := Reload(s.File, before); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Reload(s.File, before); err == nil {
		t.Error("a file that is gone was read")
	}
}
