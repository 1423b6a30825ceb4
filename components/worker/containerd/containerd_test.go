package containerd

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"

	"kubelith.io/kubelith/runtime/oci"
)

func options(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"runc", "containerd-shim-runc-v2", "kubelith-keeper", "kubelith-pause"} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Options{Root: filepath.Join(dir, "root"), State: "/run/x", Socket: "/run/x/containerd.sock", BinDir: bin}
}

func TestPreflight(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		want   string // part of the error, "" for none
	}{
		"good":         {func(*Options) {}, ""},
		"relative":     {func(o *Options) { o.State = "run" }, "not absolute"},
		"long socket":  {func(o *Options) { o.Socket = "/" + strings.Repeat("s", 98) }, "shorter run directory"},
		"fits":         {func(o *Options) { o.Socket = "/" + strings.Repeat("s", 97) }, ""},
		"long state":   {func(o *Options) { o.State = "/" + strings.Repeat("s", 40) }, "by 1 bytes"},
		"state fits":   {func(o *Options) { o.State = "/" + strings.Repeat("s", 39) }, ""},
		"no programs":  {func(o *Options) { o.BinDir = "/nonexistent" }, "payload is missing"},
		"root a file":  {func(o *Options) { o.Root = filepath.Join(o.BinDir, "runc") }, "create the containerd root"},
		"root in proc": {func(o *Options) { o.Root = "/proc/kubelith" }, "create the containerd root"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			tc.change(&o)
			err := o.preflight()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCheckPath(t *testing.T) {
	ours, stale := options(t), options(t)
	s := New(ours)
	t.Setenv("PATH", ours.BinDir+":"+stale.BinDir)
	if err := s.checkPath(); err != nil {
		t.Error(err)
	}
	t.Setenv("PATH", stale.BinDir+":"+ours.BinDir)
	if err := s.checkPath(); err == nil || !strings.Contains(err.Error(), "must come first") {
		t.Errorf("a foreign shim comes first in PATH: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := s.checkPath(); err == nil {
		t.Error("no shim in PATH, no error")
	}
}

func TestConfigFollowsHost(t *testing.T) {
	for _, h := range []host{
		{snapshotter: "overlayfs", systemdCgroup: true, selinux: true, capSysResource: true},
		{snapshotter: "native"},
	} {
		cfg := config(Options{BinDir: "/b", Socket: "/r/c.sock", State: "/r"}, h)
		cri := cfg.Plugins[criRuntime].(table)
		runc := cri["containerd"].(table)["runtimes"].(table)["runc"].(table)
		for name, got := range map[string]any{
			"systemd":     runc["options"].(table)["SystemdCgroup"] == h.systemdCgroup,
			"runc":        runc["options"].(table)["BinaryName"] == "/b/runc",
			"selinux":     cri["enable_selinux"] == h.selinux,
			"oom":         cri["restrict_oom_score_adj"] == !h.capSysResource,
			"stats":       cri["stats_collect_period"] == "10s",
			"snapshotter": cfg.Plugins["io.containerd.cri.v1.images"].(table)["snapshotter"] == h.snapshotter,
		} {
			if got != true {
				t.Errorf("%+v: %s is wrong", h, name)
			}
		}
	}
}

// TestRuntimes: a runtime of the host differs from runc in its program and its directory, and one is the default.
func TestRuntimes(t *testing.T) {
	h := host{systemdCgroup: true, runtimes: []oci.Runtime{{Name: oci.Crun, Path: "/usr/bin/crun", Version: "1.8.1"}}}
	cri := config(Options{BinDir: "/b", State: "/r", DefaultRuntime: oci.Crun}, h).Plugins[criRuntime].(table)["containerd"].(table)
	if got := cri["default_runtime_name"]; got != "crun" {
		t.Errorf("the default is %v", got)
	}
	got := map[string]string{}
	for name, handler := range cri["runtimes"].(table) {
		o := handler.(table)["options"].(table)
		got[name] = fmt.Sprintf("%s %s %s %v", handler.(table)["runtime_path"], o["BinaryName"], o["Root"], o["SystemdCgroup"])
	}
	want := map[string]string{
		"runc": "/b/containerd-shim-runc-v2 /b/runc /r/runc true",
		"crun": "/b/containerd-shim-runc-v2 /usr/bin/crun /r/crun true",
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	base := logrus.New()
	base.Out = &out
	fatal := make(chan string, 1)
	logger := containerdLogger(base.WithField("component", "containerd"), false, fatal)
	logger.Info("loading plugin")
	logger.Warn("failed check for fsverity support")
	logger.Warn("real trouble")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		logger.Fatal("cannot serve")
		t.Error("Fatal returned")
	}()
	<-ended
	if msg := <-fatal; msg == "" {
		t.Error("Fatal was not reported")
	}
	got := out.String()
	if strings.Contains(got, "plugin") || strings.Contains(got, "fsverity") ||
		!strings.Contains(got, "real trouble") || !strings.Contains(got, "cannot serve") || !strings.Contains(got, "component=containerd") {
		t.Errorf("logged: %s", got)
	}
}

func TestKeepKlogFlags(t *testing.T) {
	restore := keepKlogFlags()
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	before := flags.Lookup("v").Value.String()
	if err := flags.Set("v", "7"); err != nil {
		t.Fatal(err)
	}
	restore()
	if got := flags.Lookup("v").Value.String(); got != before {
		t.Errorf("klog's verbosity is %s, was %s", got, before)
	}
}
