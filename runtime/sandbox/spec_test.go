package sandbox

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// sandboxSpec is like what containerd writes for a pod.
func sandboxSpec() *specs.Spec {
	shares := uint64(2)
	return &specs.Spec{
		Annotations: map[string]string{kindAnnotation: "sandbox"},
		Hostname:    "web-0",
		Process: &specs.Process{
			User:         specs.User{UID: 65535, GID: 65534, AdditionalGids: []uint32{7}},
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/kubepods/besteffort/pod1/2",
			Sysctl:      map[string]string{"net.ipv4.ping_group_range": "0 2147483647"},
			Resources:   &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}},
			Seccomp:     &specs.LinuxSeccomp{},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: "/run/netns/a"}, {Type: specs.CgroupNamespace},
			},
		},
	}
}

func TestForRunc(t *testing.T) {
	memory, hard := int64(1), "x"
	for name, c := range map[string]struct {
		change func(*specs.Spec)
		want   string
	}{
		"a pod":                     {func(*specs.Spec) {}, ""},
		"on the host's network":     {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:4] }, ""},
		"with the host's processes": {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, ""},
		"a container":               {func(s *specs.Spec) { s.Annotations[kindAnnotation] = "container" }, "a container"},
		"without annotations":       {func(s *specs.Spec) { s.Annotations = nil }, "a container"},
		"user namespace": {func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		}, "a user namespace"},
		"mapped users":         {func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 1}} }, "a user namespace"},
		"SELinux":              {func(s *specs.Spec) { s.Process.SelinuxLabel = hard }, "a label of a security module"},
		"AppArmor":             {func(s *specs.Spec) { s.Process.ApparmorProfile = hard }, "a label of a security module"},
		"hooks":                {func(s *specs.Spec) { s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{}}} }, "hooks"},
		"limits":               {func(s *specs.Spec) { s.Process.Rlimits = []specs.POSIXRlimit{{}} }, "resource limits"},
		"memory":               {func(s *specs.Spec) { s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &memory} }, "resources"},
		"a quota":              {func(s *specs.Spec) { s.Linux.Resources.CPU.Quota = &memory }, "resources"},
		"cgroup v2's own":      {func(s *specs.Spec) { s.Linux.Resources.Unified = map[string]string{"a": "b"} }, "resources"},
		"no mount namespace":   {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:3] }, "no mount namespace"},
		"processes of another": {func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/pid" }, "a pid namespace of another process"},
		"a time namespace": {func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
		}, "a time namespace"},
		"no cgroup":     {func(s *specs.Spec) { s.Linux.CgroupsPath = "" }, "no cgroup"},
		"a terminal":    {func(s *specs.Spec) { s.Process.Terminal = true }, "settings of the process"},
		"a personality": {func(s *specs.Spec) { s.Linux.Personality = &specs.LinuxPersonality{} }, "settings of Linux"},
	} {
		t.Run(name, func(t *testing.T) {
			s := sandboxSpec()
			c.change(s)
			if got := ForRunc(s); got != c.want {
				t.Errorf("forRunc = %q, want %q", got, c.want)
			}
		})
	}
}

func TestSettings(t *testing.T) {
	got, err := settings(sandboxSpec(), "/b/rootfs")
	if err != nil {
		t.Fatal(err)
	}
	want := "r/b/rootfs|c|hweb-0|s/proc/sys/net/ipv4/ping_group_range=0 2147483647|u65535|g65534|G7|"
	if got := strings.ReplaceAll(string(got), "\x00", "|"); got != want {
		t.Errorf("settings = %s, want %s", got, want)
	}
	for name, change := range map[string]func(*specs.Spec){
		"a NUL byte":          func(s *specs.Spec) { s.Hostname = "a\x00u0" },
		"no name":             func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"": "x"} },
		"a second assignment": func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"a=b": "x"} },
	} {
		s := sandboxSpec()
		change(s)
		if got, err := settings(s, "/b/rootfs"); err == nil {
			t.Errorf("%s: settings = %q, want an error", name, got)
		}
	}
}

func TestHostNameStaysTheHosts(t *testing.T) {
	s := sandboxSpec()
	s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	got, err := settings(s, "/b/rootfs")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "web-0") {
		t.Errorf("settings = %q: they set the host name without a namespace for it", got)
	}
}

func TestNamespaceFlags(t *testing.T) {
	flags, network := namespaceFlags(sandboxSpec())
	if want := uintptr(unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNS); flags != want || network != "/run/netns/a" {
		t.Errorf("namespaceFlags = %#x, %q, want %#x, /run/netns/a", flags, network, want)
	}
	s := sandboxSpec()
	s.Linux.Namespaces[4].Path = ""
	if flags, network := namespaceFlags(s); flags&unix.CLONE_NEWNET == 0 || network != "" {
		t.Errorf("namespaceFlags = %#x, %q, want a new network namespace", flags, network)
	}
}

func TestCgroupOf(t *testing.T) {
	c, err := cgroupOf(sandboxSpec(), false)
	if err != nil || c.Path != "/kubepods/besteffort/pod1/2" || c.Resources.CpuShares != 2 || c.Resources.CpuWeight != 1 || !c.Resources.SkipDevices {
		t.Errorf("cgroupOf = %+v, %v", c, err)
	}
	s := sandboxSpec()
	if _, err := cgroupOf(s, true); err == nil {
		t.Error("cgroupOf takes a path for a scope of systemd")
	}
	s.Linux.CgroupsPath = "kubepods-pod1.slice:cri-containerd:2"
	c, err = cgroupOf(s, true)
	if err != nil || c.Parent != "kubepods-pod1.slice" || c.ScopePrefix != "cri-containerd" || c.Name != "2" || !c.Systemd {
		t.Errorf("cgroupOf = %+v, %v", c, err)
	}
}

// TestForCrun: a bundle for crun has another version and all else as it was; one for runc is not touched.
func TestForCrun(t *testing.T) {
	const written = `{"ociVersion":"1.3.0","process":{"args":["<a>"],"oomScoreAdj":1000},"hostname":"a"}`
	for program, want := range map[string]string{
		"/data/current/bin/runc": "1.3.0", "": "1.3.0", "/usr/bin/youki": "1.3.0", "/usr/bin/crun": "1.0.2",
	} {
		bundle := t.TempDir()
		path := filepath.Join(bundle, "config.json")
		if err := os.WriteFile(path, []byte(written), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := ForCrun(bundle, program); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got, all map[string]any
		if err := errors.Join(json.Unmarshal(content, &got), json.Unmarshal([]byte(written), &all)); err != nil {
			t.Fatal(err)
		}
		all["ociVersion"] = want
		if !reflect.DeepEqual(got, all) {
			t.Errorf("for %q: %s", program, content)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
	if err := ForCrun(t.TempDir(), "/usr/bin/crun"); err == nil {
		t.Error("no error without a configuration")
	}
}

// TestKeepVolumeFlags: a volume has the options in the container that it is mounted with; other mounts are as
// containerd wants them.
func TestKeepVolumeFlags(t *testing.T) {
	bundle := t.TempDir()
	statfs := func(path string, fs *unix.Statfs_t) error {
		if strings.Contains(path, "gone") {
			return unix.ENOENT
		}
		fs.Flags = unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_RDONLY | unix.ST_RELATIME
		return nil
	}
	const pod = "/var/lib/kubelet/pods/a"
	mounts := []specs.Mount{
		{Destination: "/volume", Source: pod + "/volumes/kubernetes.io~csi/v/mount", Options: []string{"rbind", "rw", "nodev"}},
		{Destination: "/subpath", Source: pod + "/volume-subpaths/v/main/0", Options: []string{"rbind", "ro"}},
		{Destination: "/host", Source: "/srv", Options: []string{"rbind", "rw"}},
		{Destination: "/gone", Source: pod + "/volumes/kubernetes.io~csi/gone/mount", Options: []string{"rbind", "rw"}},
	}
	text, err := json.Marshal(map[string]any{"hostname": "a", "mounts": mounts})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(bundle, "config.json")
	if err := os.WriteFile(path, text, 0o640); err != nil {
		t.Fatal(err)
	}
	b, err := ReadSpec(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if err := KeepVolumeFlags(bundle, b.Mounts, statfs); err != nil {
		t.Fatal(err)
	}
	var got specs.Spec
	if text, err = os.ReadFile(path); err == nil {
		err = json.Unmarshal(text, &got)
	}
	if err != nil || got.Hostname != "a" || len(got.Mounts) != len(mounts) {
		t.Fatalf("%v: %s", err, text)
	}
	for i, want := range [][]string{
		{"nodev", "noexec", "nosuid", "rbind", "rw"}, {"nodev", "noexec", "nosuid", "rbind", "ro"}, {"rbind", "rw"}, {"rbind", "rw"},
	} {
		if have := slices.Sorted(slices.Values(got.Mounts[i].Options)); !slices.Equal(have, want) {
			t.Errorf("%s has the options %v, want %v", got.Mounts[i].Destination, have, want)
		}
	}
	// Nothing to keep: the file is not written again.
	if err := errors.Join(os.Remove(path), KeepVolumeFlags(bundle, mounts[2:], statfs)); err != nil {
		t.Error(err)
	}
}
