package node

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/host/preflight"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/host"
	pluginprocess "kubelith.io/kubelith/plugins/process"
)

func TestPluginSpecs(t *testing.T) {
	uid := int64(config.AutoUID)
	got := pluginSpecs([]config.Plugin{{
		Name: "a", Kind: "admission", Path: "/a", Args: []string{"-v"}, Env: []string{"A=b"}, SHA256: "00", FailurePolicy: "Ignore", Timeout: time.Second,
		Config: []byte(`{}`), Limits: config.PluginLimits{Memory: "64Mi", CPU: "0.5", PIDs: 20, UID: &uid, GID: &uid, Capabilities: []string{"SYS_ADMIN"}}, File: "/c.yaml", Line: 7,
	}, {Name: "b", Kind: "storage", Path: "/b", Limits: config.PluginLimits{Memory: "none"}, File: "/c.yaml", Line: 9}})
	want := []host.Spec{{
		Spec: pluginprocess.Spec{Name: "a", Kind: plugins.Admission, Path: "/a", Args: []string{"-v"}, Env: []string{"A=b"}, SHA256: "00", Config: []byte(`{}`),
			Limits: pluginprocess.Limits{Memory: 64 << 20, MilliCPU: 500, PIDs: 20, UID: &uid, GID: &uid, Capabilities: []string{"SYS_ADMIN"}}, Source: "/c.yaml:7"},
		Settings: plugins.Settings{FailurePolicy: "Ignore", Timeout: time.Second},
	}, {Spec: pluginprocess.Spec{Name: "b", Kind: plugins.Storage, Path: "/b", Limits: pluginprocess.Limits{Memory: -1}, Source: "/c.yaml:9"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
}

// The configuration and the host of plugins mean the same by auto, and the configuration keeps its numbers free.
func TestAutoUID(t *testing.T) {
	if config.AutoUID != host.AutoUID {
		t.Errorf("auto is %d in the configuration, %d for the host", config.AutoUID, host.AutoUID)
	}
	for uid, refused := range map[int64]bool{host.FirstAutoUID - 1: false, host.FirstAutoUID: true, host.LastAutoUID: true, host.LastAutoUID + 1: false} {
		problems := config.PluginLimits{UID: &uid}.Problems()
		if (len(problems) > 0) != refused {
			t.Errorf("uid %d: %v", uid, problems)
		}
	}
}

// A plugin that runs as the user nobody is a warning at a start and in check.
func TestPluginResults(t *testing.T) {
	nobody, own := int64(65534), int64(12345)
	cfg := &config.Server{Plugins: []config.Plugin{
		{Name: "a", Limits: config.PluginLimits{UID: &nobody}, File: "/c.yaml", Line: 7}, {Name: "b", Limits: config.PluginLimits{UID: &own}}, {Name: "c"},
	}}
	cfg.File = filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(cfg.File, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := pluginResults(cfg)
	want := "warning  plugin a: runs as user 65534 (/c.yaml:7), which other programs on this host may share: they could read its key: set limits.uid: auto, which gives it its own user"
	if len(got) != 1 || got[0].String() != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	// A user who writes to the file runs programs as root.
	if err := os.Chmod(cfg.File, 0o622); err != nil {
		t.Fatal(err)
	}
	if got := pluginResults(cfg); len(got) != 2 || got[0].Status != preflight.Fail || !strings.Contains(got[0].Message, "can be written by others") {
		t.Errorf("of a file that others may write: %v", got)
	}
	cfg.Plugins = nil
	if got := pluginResults(cfg); len(got) != 0 {
		t.Errorf("of a file that names no plugin: %v", got)
	}
}

func TestReloadPlugins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	log, lines := test.NewNullLogger()
	log.SetOutput(io.Discard)
	var applied []string
	reload := reloadPlugins(file, func(all []config.Plugin) {
		applied = nil
		for _, p := range all {
			applied = append(applied, p.Name)
		}
	}, log)
	for _, step := range []struct {
		text string
		want []string
		log  string
		mode os.FileMode
	}{
		{"plugins: [{name: a, kind: admission, path: /a}]\n", []string{"a"}, "", 0o600},
		{"plugins: [{name: c, kind: admission, path: /c}]\n", []string{"a"}, "config.yaml can be written by others, who could change what runs as root: chmod go-w " + file + ": no plugin is changed", 0o622},
		{"plugins: [{name: a, kind: moon, path: /a}]\n", []string{"a"}, file + `:3: plugin "a": unknown kind "moon": use one of admission, scheduling, storage: no plugin is changed`, 0o600},
		{"logLevel: debug\nplugins: [{name: b, kind: storage, path: /b}]\n", []string{"b"}, "the change of logLevel takes effect at the next start", 0o600},
		{"logLevel: debug\n", nil, "", 0o600},
	} {
		lines.Reset()
		if err := os.WriteFile(file, []byte("apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"+step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, step.mode); err != nil {
			t.Fatal(err)
		}
		reload()
		if !reflect.DeepEqual(applied, step.want) {
			t.Errorf("%q: applied %v, want %v", step.text, applied, step.want)
		}
		var said []string
		for _, e := range lines.AllEntries() {
			if e.Level <= logrus.WarnLevel {
				said = append(said, e.Message)
			}
		}
		if text := strings.Join(said, "\n"); !strings.Contains(text, step.log) || step.log == "" && text != "" || len(said) > 1 {
			t.Errorf("%q: logged %q, want %q", step.text, said, step.log)
		}
	}
}

func spec(name string) host.Spec {
	return host.Spec{Spec: pluginprocess.Spec{Name: name, Path: "/opt/" + name}}
}

func TestBuiltinPlugins(t *testing.T) {
	for _, tc := range []struct {
		name       string
		configured []host.Spec
		disabled   string
		want       int
		builtin    bool
	}{
		{"none configured", nil, "", 1, true},
		{"others configured", []host.Spec{spec("a"), spec("b")}, "", 3, true},
		{"one of that name", []host.Spec{spec("local")}, "", 1, false},
		{"no pods", nil, "kubelet", 0, false},
		{"switched off", []host.Spec{spec("a")}, "local-storage", 1, false},
	} {
		got := withBuiltinPlugins(tc.configured, withoutKubelet(func(name string) bool { return name == tc.disabled }), "/bin/dir")
		var last host.Spec
		if len(got) > 0 {
			last = got[len(got)-1]
		}
		if len(got) != tc.want || (last.Path == "/bin/dir/kubelith-local") != tc.builtin {
			t.Errorf("%s: %+v", tc.name, got)
		}
		if len(tc.configured) > 0 && &got[0] == &tc.configured[0] && len(got) != len(tc.configured) {
			t.Errorf("%s: the list of the configuration was changed", tc.name)
		}
	}
}
