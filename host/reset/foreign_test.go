package reset

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/filetree"
	"kubelith.io/kubelith/host"
	"kubelith.io/kubelith/host/hosttest"
)

// hosts of others: what kubeadm and k3s have on a machine. The pods' UIDs are in the names of logs and control groups
// too.
const (
	foreignUID = "11111111-2222-3333-4444-555555555555"
	ourUID     = "99999999-8888-7777-6666-555555555555"
)

func kubeadm() []string {
	return []string{"/k/config.yaml", "/k/kubeadm-flags.env", "/k/pki/kubelet-client-current.pem", "/k/cpu_manager_state", "/k/pods/" + foreignUID + "/volumes/kubernetes.io~empty-dir/v/f",
		"/k/pod-resources/x", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/pki/ca.key", "/var/log/pods/ns_a_" + foreignUID + "/c/0.log",
		host.Cgroups + "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(foreignUID, "-", "_") + ".slice/cgroup.procs"}
}

func k3s() []string {
	return []string{"/k/cpu_manager_state", "/k/memory_manager_state", "/k/pods/" + foreignUID + "/etc-hosts", "/k/plugins_registry/x", "/var/lib/rancher/k3s/server/db/state.db",
		"/run/k3s/containerd/containerd.sock", "/var/log/pods/ns_a_" + foreignUID + "/c/0.log", host.Cgroups + "/kubepods/besteffort/pod" + foreignUID + "/cgroup.procs"}
}

// TestHostsOfOthers: in whatever state our data directory and a host are, reset --data leaves the others' files, pods,
// control groups and logs.
func TestHostsOfOthers(t *testing.T) {
	refused := map[string]string{"/d/version": "1\n", "/d/lock": ""} // left by a refused start of an older release
	ran := map[string]string{"/d/version": "1\n", "/d/agent/containerd/io.containerd.metadata.v1.bolt/meta.db": ""}
	with := func(files map[string]string, more ...string) map[string]string {
		out := map[string]string{}
		for path, text := range files {
			out[path] = text
		}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	socket := "0000000000000000: 00000002 00000000 00010000 0001 01 20842 /k/pod-resources/kubelet.sock\n"
	for name, c := range map[string]struct {
		foreign []string
		ours    map[string]string
		gone    []string // our paths
		mounts  string
	}{
		"kubeadm, refused start":                 {foreign: kubeadm(), ours: refused, gone: []string{"/d"}},
		"k3s, refused start":                     {foreign: k3s(), ours: refused, gone: []string{"/d"}},
		"kubeadm, no cluster of Kubelith's":      {foreign: kubeadm()},
		"k3s, no cluster of Kubelith's":          {foreign: k3s()},
		"kubeadm after a server without kubelet": {foreign: kubeadm(), ours: with(ran, "/d/id", "one", "/r/data-dir", "/d\none\n"), gone: []string{"/d", "/r"}},
		"k3s after a server without kubelet":     {foreign: k3s()[:6], ours: with(ran, "/d/id", "one"), gone: []string{"/d"}},
		"kubeadm where an older release ran":     {foreign: kubeadm(), ours: ran, gone: []string{"/d"}},
		"k3s runs where an older release ran":    {foreign: k3s(), ours: with(ran, "/proc/net/unix", socket), gone: []string{"/d"}},
		"another Kubelith's":                     {foreign: append(k3s(), "/k/.kubelith"), ours: with(ran, "/d/id", "one"), gone: []string{"/d"}},
		"a run directory that says nothing":      {foreign: append(k3s(), "/r/containerd/containerd.sock"), ours: with(ran, "/d/id", "one"), gone: []string{"/d"}},
		"bind mount of a user's directory": {foreign: []string{"/k/pods/" + ourUID + "/volumes/v/f"}, ours: with(ran, "/k/.kubelith", "/d"),
			mounts: "2 1 8:1 /home/u /k/pods/" + ourUID + "/volumes/v rw - ext4 /dev/sda rw\n"},
		"nested mounts": {foreign: []string{"/d/agent/a/b/f"}, ours: with(ran, "/k/.kubelith", "/d"), gone: []string{"/k"},
			mounts: "2 1 8:2 / /d/agent/a rw - ext4 /dev/sdb rw\n3 2 0:9 / /d/agent/a/b rw - nfs n rw\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.New(t)
			nets := &fakeNetwork{bridge: []netip.Prefix{netip.MustParsePrefix("10.42.0.1/24")}}
			r, _ := newTestReset(h, nets)
			r.opts.Data = true
			var stopped []string
			r.stopUnits = func(_ context.Context, names []string) error { stopped = append(stopped, names...); return nil }
			for _, path := range c.foreign {
				h.Write(path, "/another\n")
			}
			for path, text := range c.ours {
				h.Write(path, text)
			}
			if c.mounts != "" {
				h.Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n"+c.mounts)
			}
			for pid, socket := range map[int]string{10: "/run/k3s/containerd/containerd.sock", 11: "/r/containerd/containerd.sock"} {
				h.Process(pid, 1, "containerd-shim", "/usr/bin/containerd-shim-runc-v2", "/", "/usr/bin/containerd-shim-runc-v2", "-address", socket)
			}
			err := r.Run(t.Context())
			if (err != nil) != (c.mounts != "") {
				t.Errorf("error %v", err)
			}
			gone := func(path string) bool {
				return slices.ContainsFunc(c.gone, func(dir string) bool { return filetree.Below(dir, path) })
			}
			for _, path := range append(c.foreign, "/proc/10", "/proc/11") {
				if path == "/proc/11" && c.ours["/r/data-dir"] != "" {
					continue // of our containerd
				}
				if !gone(path) && !h.Exists(path) {
					t.Errorf("%s was removed", path)
				}
			}
			for _, path := range c.gone {
				if h.Exists(path) {
					t.Errorf("%s is left", path)
				}
			}
			if len(stopped) > 0 {
				t.Errorf("stopped the slices %q", stopped)
			}
		})
	}
}

// A link in our directories is removed, its target stays. So do the user's files beside ours, including the user's
// link.
func TestWhatPeoplePutThereStays(t *testing.T) {
	h := hosttest.New(t)
	r, out := newTestReset(h, &fakeNetwork{})
	r.opts.Data = true
	mine := []string{"/d/notes", "/d/server/manifests/app.yaml", "/d/plugins/admission/p", "/d/agent/mine/x", "/k/seccomp/p.json", "/k/config.json", "/home/u/precious"}
	ours := []string{"/d/version", "/d/id", "/d/lock", "/d/cluster.json", "/d/server/db/member/wal", "/d/server/tls/admin.key", "/d/server/token", "/d/plugins/data/local/v", "/d/agent/cni/x", "/d/data/h/bin/runc", "/k/cpu_manager_state", "/k/plugins/driver/csi.sock"}
	for _, path := range append(append([]string{}, mine...), ours...) {
		h.Write(path, "")
	}
	h.Write("/k/.kubelith", "/d")
	for _, dir := range []string{"/d/agent/static-pods", "/k/pods/" + ourUID} {
		if err := os.MkdirAll(h.Path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.Link("/d/agent/containerd", h.Path("/home/u"))
	h.Link("/d/agent/images", h.Path("/home/u"))
	h.Link("/k/pods/"+ourUID+"/volumes", h.Path("/home/u"))
	if plan := strings.Join(r.Plan(), "\n"); !strings.Contains(plan, "but leave in /k: config.json, seccomp") {
		t.Errorf("plan:\n%s", plan)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range append(mine, "/d/agent/images") {
		if !h.Exists(path) {
			t.Errorf("%s was removed", path)
		}
	}
	for _, path := range append(ours, "/d/agent/containerd", "/d/agent/static-pods", "/k/.kubelith", "/k/pods") {
		if h.Exists(path) {
			t.Errorf("%s is left", path)
		}
	}
	for _, line := range []string{"left in /d: agent/images, agent/mine, notes, plugins/admission, server/manifests", "left in /k: config.json, seccomp"} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("%q is not printed:\n%s", line, out)
		}
	}
	if plan := r.Plan(); len(plan) > 0 {
		t.Errorf("a second plan: %q", plan)
	}
}

// While something of a cluster cannot be removed, it can be recognised as ours.
func TestMarksGoLast(t *testing.T) {
	h := hosttest.New(t)
	r, _ := newTestReset(h, &fakeNetwork{})
	r.opts.Data = true
	for path, text := range map[string]string{"/d/version": "1", "/d/data/x": "", "/k/.kubelith": "/d", "/k/pods/a/mounted/x": ""} {
		h.Write(path, text)
	}
	h.Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / /k/pods/a/mounted rw - nfs n rw\n")
	if err := r.Run(t.Context()); err == nil {
		t.Fatal("removed through a mount")
	}
	for _, path := range []string{"/d/version", "/d/data/x", "/k/.kubelith", "/k/pods/a/mounted/x"} {
		if !h.Exists(path) {
			t.Errorf("%s was removed", path)
		}
	}
}

// A moved data directory still has its directories: their marks have its id.
func TestMovedDataDirectory(t *testing.T) {
	h := hosttest.New(t)
	r, _ := newTestReset(h, &fakeNetwork{})
	r.opts.Data = true
	for path, text := range map[string]string{"/d/version": "1", "/d/id": "one\n", "/k/.kubelith": "/before\none\n", "/k/pods/x": "", "/r/data-dir": "/before\none\n"} {
		h.Write(path, text)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/d", "/k", "/r"} {
		if h.Exists(dir) {
			t.Errorf("%s is left", filepath.Clean(dir))
		}
	}
}
