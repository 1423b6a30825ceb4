package reset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/host"
	"kubelith.io/kubelith/host/hosttest"
)

const containerID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// fakeNetwork answers for the kernel.
type fakeNetwork struct {
	bridge  []netip.Prefix
	tables  map[string]string // "family name" to nft's answer
	links   map[string]string // to the alias
	routed  map[int]int       // protocol to the number of routes
	removed []string
}

func (n *fakeNetwork) addresses(string) ([]netip.Prefix, error) { return n.bridge, nil }
func (n *fakeNetwork) ports(string) ([]string, error)           { return nil, nil }
func (n *fakeNetwork) marked(alias string) (out []string, err error) {
	for name, a := range n.links {
		if a == alias {
			out = append(out, name)
		}
	}
	return out, nil
}
func (n *fakeNetwork) routes(protocol int) (int, error) { return n.routed[protocol], nil }
func (n *fakeNetwork) removeRoutes(protocol int) error {
	n.removed = append(n.removed, "routes "+strconv.Itoa(protocol))
	delete(n.routed, protocol)
	return nil
}
func (n *fakeNetwork) removeLink(name string) error {
	delete(n.links, name)
	n.removed = append(n.removed, name)
	return nil
}

func (n *fakeNetwork) nft(_ context.Context, args ...string) (string, error) {
	command := strings.Join(args, " ")
	switch {
	case command == "-j list tables":
		var entries []string
		for t := range n.tables {
			family, name, _ := strings.Cut(t, " ")
			entries = append(entries, `{"table":{"family":"`+family+`","name":"`+name+`","handle":1}}`)
		}
		slices.Sort(entries)
		return `{"nftables":[{"metainfo":{"version":"1.0.6"}},` + strings.Join(entries, ",") + `]}`, nil
	case strings.HasPrefix(command, "-j list table "):
		return n.tables[strings.TrimPrefix(command, "-j list table ")], nil
	case strings.HasPrefix(command, "delete table "):
		delete(n.tables, strings.TrimPrefix(command, "delete table "))
	}
	n.removed = append(n.removed, command)
	return "", nil
}

func newTestReset(h hosttest.Host, nets network) (*Reset, *bytes.Buffer) {
	h.Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n")
	out := &bytes.Buffer{}
	return &Reset{
		opts:  Options{DataDir: "/d", RunDir: "/r", KubeletRootDir: "/k", Network: "kubelith", Bridge: "cni0", Kubeconfig: "/etc/kubelith/kubelith.yaml", Out: out},
		files: h.Tree, nets: nets, owned: owned{true, true, true},
		kill: func(pid int, signal unix.Signal) error {
			return os.RemoveAll(h.Path("/proc/" + strconv.Itoa(pid)))
		},
		neighbour: func() bool { return false },
	}, out
}

// Only processes that our shims started, or in our containers' control groups, are ended.
func TestContainersOfOthersStay(t *testing.T) {
	h := hosttest.New(t)
	r, _ := newTestReset(h, &fakeNetwork{})
	h.Process(1, 0, "init", "/sbin/init", "/")
	h.Process(10, 1, "containerd-shim", "/d/data/abc/bin/containerd-shim-runc-v2 (deleted)", "/", "/x", "-id", "sandbox")
	h.Process(11, 10, "pause) x", "/pause", "/kubepods/podx/other")
	h.Process(12, 11, "child", "/child", "/")
	h.Process(20, 1, "containerd-shim", "/usr/bin/containerd-shim-runc-v2", "/", "/usr/bin/containerd-shim-runc-v2", "-address", "/r/containerd/containerd.sock")
	h.Process(30, 1, "containerd-shim", "/usr/bin/containerd-shim-runc-v2", "/", "containerd-shim-runc-v2", "-address", "/run/containerd/containerd.sock", "-id", containerID)
	h.Process(31, 30, "foreign", "/foreign", "/docker/x")
	h.Process(40, 1, "orphan", "/orphan", "/kubepods/besteffort/podu/"+containerID+"/sub")
	h.Process(41, 1, "scope", "/orphan", "/kubepods.slice/cri-containerd-abc.scope")
	h.Process(42, 1, "neighbour", "/orphan", "/kubepods/besteffort/podu/"+containerID+"0")
	h.Write("/r/containerd/io.containerd.runtime.v2.task/k8s.io/"+containerID+"/config.json",
		`{"linux":{"cgroupsPath":"/kubepods/besteffort/podu/`+containerID+`"}}`)
	h.Write("/r/containerd/io.containerd.runtime.v2.task/k8s.io/abc/config.json", `{"linux":{"cgroupsPath":"a.slice:cri-containerd:abc"}}`)

	found := r.containers()
	pids := func(list []process) (out []int) {
		for _, p := range list {
			out = append(out, p.pid)
		}
		slices.Sort(out)
		return out
	}
	if got := pids(found.keepers); !slices.Equal(got, []int{10, 20}) {
		t.Errorf("shims %v", got)
	}
	if got := pids(found.members); !slices.Equal(got, []int{11, 12, 40, 41}) {
		t.Errorf("members %v", got)
	}
	if err := r.stopContainers(context.Background()); err != nil {
		t.Fatal(err)
	}
	if left := pids(processes(h.Tree)); !slices.Equal(left, []int{1, 30, 31, 42}) {
		t.Errorf("left: %v", left)
	}
}

func TestRunRemovesOnlyOwned(t *testing.T) {
	h := hosttest.New(t)
	rule := func(comment string) string {
		return `{"rule":{"family":"inet","table":"t","chain":"c","handle":7,"comment":"` + comment + `"}}`
	}
	nets := &fakeNetwork{
		bridge: []netip.Prefix{netip.MustParsePrefix("10.42.0.1/24")},
		links:  map[string]string{"flannel.1": "kubelith", "flannel.2": "", "flannel-v6.1": "k3s"},
		routed: map[int]int{107: 2, 4: 3},
		tables: map[string]string{
			"ip kube-proxy":               "",
			"inet kubelith_network":       "",
			"inet kubelith_vxlan":         "",
			"inet kubelith_dns":           "",
			"ip docker":                   "",
			"inet cni_plugins_masquerade": `{"nftables":[` + rule("a-b, net: podman, if: eth0, id: x") + "," + rule("a-c, net: kubelith, if: eth0, id: 0123456789abcdef01") + "," + rule("a-d, net: kubelith, if: eth0, id: fedcba9876543210") + `]}`,
			"ip cni_hostport":             `{"nftables":[` + rule("foreign") + "," + rule(containerID) + `]}`,
		},
	}
	r, out := newTestReset(h, nets)
	r.opts.Data = true
	for path, text := range map[string]string{
		"/d/version": "1", "/d/upgrade-cluster.lock": "", "/k/.kubelith": "/d", "/r/data-dir": "/d", "/d/agent/cni/kubelith/last_reserved_ip.0": "10.42.0.9",
		"/d/agent/cni/kubelith/10.42.0.9": containerID + "\r\neth0", "/var/lib/cni/results/kubelith-another-eth0": "", "/k/pods/uid-1/x": "", "/r/containerd/x": "",
		"/etc/kubelith/kubelith.yaml": "certificate-authority-data: Q0EK", "/d/server/tls/cluster-ca.crt": "CA\n", "/var/log/pods/ns_a_uid-1/c/0.log": "", "/var/log/pods/ns_b_uid-2/c/0.log": "",
		"/var/lib/cni/results/kubelith-" + containerID + "-eth0": "", "/var/lib/cni/results/podman-1-eth0": "",
	} {
		h.Write(path, text)
	}
	h.Link("/var/log/containers/a.log", "/var/log/pods/ns_a_uid-1/c/0.log")
	h.Link("/var/log/containers/b.log", "/var/log/pods/ns_b_uid-2/c/0.log")
	for _, dir := range []string{"memory/kubepods/poduid-1/x", "memory/kubepods/poduid-2", "memory/kubepods/burstable", "kubepods.slice/kubepods-poduid_1.slice"} {
		if err := os.MkdirAll(h.Path(host.Cgroups+"/"+dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{flexVolumeDir, podLogDir + "/ns_gone_uid-3/c"} {
		if err := os.MkdirAll(h.Path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var units []string
	r.stopUnits = func(_ context.Context, names []string) error {
		units = append(units, names...)
		return nil
	}
	if plan := r.Plan(); len(plan) != 12 {
		t.Errorf("plan of %d lines: %q", len(plan), plan)
	}
	if err := r.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"/d": false, "/k": false, "/r": false, "/etc/kubelith/kubelith.yaml": false, "/etc/kubelith": true,
		"/var/log/pods/ns_a_uid-1": false, "/var/log/pods/ns_b_uid-2/c/0.log": true, "/var/log/pods/ns_gone_uid-3": false,
		"/var/log/containers/a.log": false, "/var/log/containers/b.log": true,
		"/var/lib/cni/results/kubelith-" + containerID + "-eth0": false, "/var/lib/cni/results/podman-1-eth0": true,
		"/var/lib/cni/results/kubelith-another-eth0": true, "/usr/libexec": true, "/usr/libexec/kubernetes": false,
		host.Cgroups + "/memory/kubepods/poduid-1": false, host.Cgroups + "/memory/kubepods/poduid-2": true, host.Cgroups + "/memory/kubepods/burstable": true, host.Cgroups + "/kubepods.slice": false,
	} {
		if got := h.Exists(path); got != want {
			t.Errorf("%s exists: %v", path, got)
		}
	}
	if !slices.Equal(units, []string{"kubepods-poduid_1.slice", "kubepods.slice"}) {
		t.Errorf("stopped units: %q", units)
	}
	slices.Sort(nets.removed)
	want := []string{"cni0", "delete rule inet cni_plugins_masquerade c handle 7", "delete rule ip cni_hostport c handle 7",
		"delete table inet kubelith_dns", "delete table inet kubelith_network", "delete table inet kubelith_vxlan", "delete table ip kube-proxy", "flannel.1", "routes 107"}
	if !slices.Equal(nets.removed, want) {
		t.Errorf("removed from the network: %q", nets.removed)
	}
	out.Reset()
	nets.tables = map[string]string{}
	if plan := r.Plan(); len(plan) != 0 {
		t.Errorf("a second plan: %q", plan)
	}
	if err := r.Run(context.Background()); err != nil || out.Len() != 0 {
		t.Errorf("a second run: %v, %s", err, out)
	}
}

// Nothing below a mount is deleted; a directory that is itself a mount is emptied.
func TestRemoveAndMounts(t *testing.T) {
	h := hosttest.New(t)
	r, _ := newTestReset(h, &fakeNetwork{})
	h.Write("/k/pods/a b/data", "precious")
	h.Write("/d/x", "")
	h.Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 / /d rw - ext4 d rw\n3 1 0:9 / /k/pods/a\\040b rw - nfs n rw\n")
	if err := r.remove("/k"); err == nil || !strings.Contains(err.Error(), "/k/pods/a b is still mounted") {
		t.Errorf("error %v", err)
	}
	if !h.Exists("/k/pods/a b/data") {
		t.Error("deleted through a mount")
	}
	if err := r.remove("/d"); err != nil || h.Exists("/d/x") || !h.Exists("/d") {
		t.Errorf("error %v", err)
	}
	if mounts, err := r.mounts(); err != nil || !slices.Equal(mounts, []string{"/k/pods/a b"}) {
		t.Errorf("mounts %q, %v", mounts, err)
	}
}

// A user's disks in the data directory stay mounted. With the data they are emptied.
func TestDisksStayMounted(t *testing.T) {
	h := hosttest.New(t)
	r, _ := newTestReset(h, &fakeNetwork{})
	text := "1 0 8:1 / / rw - ext4 d rw\n"
	for i, path := range []string{"/d/server/db", "/d/server/snapshots", "/d/plugins/data/local", "/d/plugins/data/local/volumes/v/data/x", "/d/agent/containerd/x"} {
		h.Write(path+"/f", "")
		text += fmt.Sprintf("%d 1 8:%d / %s rw - ext4 d rw\n", i+2, i+2, path)
	}
	h.Write("/d/plugins/data/other/f", "")
	h.Write("/proc/self/mountinfo", text)
	if mounts, err := r.mounts(); err != nil || !slices.Equal(mounts, []string{"/d/agent/containerd/x", "/d/plugins/data/local/volumes/v/data/x"}) {
		t.Errorf("mounts %q, %v", mounts, err)
	}
	h.Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 / /d/plugins/data/local rw - ext4 d rw\n3 1 8:3 / /d/server/db rw - ext4 d rw\n")
	if err := r.clearData(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"/d/plugins/data/local": true, "/d/plugins/data/local/volumes": false, "/d/plugins/data/other": false,
		"/d/server/db": true, "/d/server/db/f": false, "/d/server/snapshots/f": true, "/d/agent/containerd": false,
	} {
		if got := h.Exists(path); got != want {
			t.Errorf("%s exists: %v", path, got)
		}
	}
}

// What is interrupted, or leaves processes behind, removes nothing that the next reset needs to know what is ours.
func TestInterrupted(t *testing.T) {
	for name, interrupt := range map[string]bool{"interrupted": true, "a container does not end": false} {
		h := hosttest.New(t)
		r, _ := newTestReset(h, &fakeNetwork{})
		r.opts.Data = true
		h.Write("/d/version", "1")
		h.Write("/d/data/x", "")
		h.Write("/k/.kubelith", "/d")
		h.Write("/r/data-dir", "/d")
		h.Write("/r/containerd/io.containerd.runtime.v2.task/k8s.io/"+containerID+"/config.json", `{"linux":{"cgroupsPath":"/kubepods/podu/`+containerID+`"}}`)
		h.Process(40, 1, "hangs", "/hangs", "/kubepods/podu/"+containerID)
		var cancel context.CancelFunc
		r.kill = func(int, unix.Signal) error {
			if interrupt {
				cancel()
			}
			return nil
		}
		synctest.Test(t, func(t *testing.T) { // which has a clock of its own
			var ctx context.Context
			ctx, cancel = context.WithCancel(t.Context())
			defer cancel()
			if err := r.Run(ctx); err == nil {
				t.Errorf("%s: no error", name)
			}
		})
		for _, path := range []string{"/d/version", "/d/data/x", "/k/.kubelith", "/r/data-dir"} {
			if !h.Exists(path) {
				t.Errorf("%s: %s is gone", name, path)
			}
		}
	}
}

// The kubelet mounts its directory on itself where mounts are private: that is no disk of the user.
func TestMountOnItself(t *testing.T) {
	for _, c := range []struct {
		name, mountinfo string
		want            bool
	}{
		{"none", "1 0 8:1 / / rw - ext4 d rw\n", false},
		{"on itself", "1 0 8:1 / / rw - ext4 d rw\n2 1 8:1 /k /k rw - ext4 d rw\n", true},
		{"on itself, on another file system", "1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 /@k /k rw - btrfs d rw\n3 2 8:2 /@k /k rw - btrfs d rw\n", true},
		{"a disk", "1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 / /k rw - ext4 d rw\n", false},
		{"another directory", "1 0 8:1 / / rw - ext4 d rw\n2 1 8:1 /srv/k /k rw - ext4 d rw\n", false},
	} {
		h := hosttest.New(t)
		r, _ := newTestReset(h, &fakeNetwork{})
		h.Write("/proc/self/mountinfo", c.mountinfo)
		if got := r.onItself("/k"); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Where no server ran on the data directory, nothing is ours: not the kubelet's directory with its pods, and not a run
// directory that belongs to another data directory.
func TestForeignDirectoriesStay(t *testing.T) {
	h := hosttest.New(t)
	nets := &fakeNetwork{bridge: []netip.Prefix{netip.MustParsePrefix("10.42.0.1/24")}, tables: map[string]string{"ip kube-proxy": ""}}
	r, out := newTestReset(h, nets)
	r.opts.Data = true
	foreign := []string{"/k/pods/uid/x", "/r/containerd/x", "/r/etcd.sock", "/etc/kubelith/kubelith.yaml", "/var/log/pods/ns_a_uid/c/0.log"}
	for _, path := range append(foreign, "/r/data-dir") {
		h.Write(path, "/another")
	}
	h.Process(10, 1, "containerd-shim", "/usr/bin/containerd-shim-runc-v2", "/", "/usr/bin/containerd-shim-runc-v2", "-address", "/r/containerd/containerd.sock")
	if plan := r.Plan(); len(plan) != 0 {
		t.Errorf("plan %q", plan)
	}
	if err := r.Run(context.Background()); err != nil || out.Len() != 0 || len(nets.removed) != 0 {
		t.Errorf("error %v, removed %q, printed %s", err, nets.removed, out)
	}
	for _, path := range append(foreign, "/proc/10") {
		if !h.Exists(path) {
			t.Errorf("%s was removed", path)
		}
	}
	// The data directory may have been deleted by hand: its run directory proves it.
	h.Write("/r/data-dir", "/d\n")
	if r.findOwned(); !r.ownsAny() {
		t.Error("the run directory of /d is not taken for its own")
	}
}

// A kubelet creates the groups around pods when it starts: they are removed with a node that never had a pod, but not
// where our kubelet never ran.
func TestGroupsWithoutPods(t *testing.T) {
	for _, started := range []bool{true, false} {
		h := hosttest.New(t)
		r, _ := newTestReset(h, &fakeNetwork{})
		h.Write("/d/version", "1")
		h.Write("/k/.kubelith", "/d")
		group := h.Path(host.Cgroups + "/kubepods.slice/kubepods-burstable.slice")
		for _, dir := range map[bool][]string{true: {group, h.Path("/k/pods")}, false: {group, h.Path("/k")}}[started] {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if left := h.Exists(host.Cgroups + "/kubepods.slice"); left == started {
			t.Errorf("kubelet started: %v; its groups are left: %v", started, left)
		}
	}
}

// Things with a fixed name are shared with a server that runs on other directories, and so is an admin kubeconfig that
// another cluster has written.
func TestNeighbourKeepsWhatIsShared(t *testing.T) {
	h := hosttest.New(t)
	nets := &fakeNetwork{
		bridge: []netip.Prefix{netip.MustParsePrefix("10.42.0.1/24")},
		tables: map[string]string{"ip kube-proxy": "", "inet kubelith_network": ""},
		links:  map[string]string{"flannel.1": "kubelith"},
		routed: map[int]int{107: 1},
	}
	r, _ := newTestReset(h, nets)
	r.neighbour = func() bool { return true }
	r.opts.Data = true
	h.Write("/d/version", "1")
	h.Write("/d/server/tls/cluster-ca.crt", "CA\n")
	h.Write("/d/agent/cni/kubelith/10.42.0.9", containerID)
	h.Write("/k/pods/uid-1/x", "")
	h.Write("/k/.kubelith", "/d")
	h.Write("/etc/kubelith/kubelith.yaml", "certificate-authority-data: b3RoZXIK")
	for _, dir := range []string{podLogDir + "/ns_a_uid-9/c", host.Cgroups + "/memory/kubepods/poduid-1", host.Cgroups + "/memory/kubepods/burstable"} {
		if err := os.MkdirAll(h.Path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(nets.removed) != 0 || len(nets.tables) != 2 {
		t.Errorf("removed %q, tables left %q", nets.removed, nets.tables)
	}
	for path, want := range map[string]bool{
		"/d": false, "/k": false, host.Cgroups + "/memory/kubepods/poduid-1": false,
		"/etc/kubelith/kubelith.yaml": true, podLogDir + "/ns_a_uid-9/c": true, host.Cgroups + "/memory/kubepods/burstable": true,
	} {
		if got := h.Exists(path); got != want {
			t.Errorf("%s exists: %v", path, got)
		}
	}
}

func TestRemovable(t *testing.T) {
	for _, dir := range []string{"/", "/var/lib/", "/etc", "relative", "/usr/../home", ""} {
		if _, err := removable(dir); err == nil {
			t.Errorf("%q is removed", dir)
		}
	}
	if got, err := removable("/var/lib/kubelith-none/"); err != nil || got != "/var/lib/kubelith-none" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestLock(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	if locks, err := lockAll(dir, run+"/none"); len(locks) != 0 || err != nil {
		t.Fatalf("no server ever ran: %v, %v", locks, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := lockAll(dir, run)
	if err != nil {
		t.Fatal(err)
	}
	for _, dirs := range [][2]string{{dir, run + "/none"}, {dir + "/none", run}} {
		_, err = lockAll(dirs[0], dirs[1])
		if err == nil || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
			t.Errorf("%q, held by ourselves: %v", dirs, err)
		}
	}
	closeAll(first)
	again, err := lockAll(dir, run)
	if err != nil {
		t.Fatal(err)
	}
	closeAll(again)
}

func TestNetworkInUse(t *testing.T) {
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if !networkInUse() {
		t.Error("a server's lock is not seen")
	}
}

// The processes in the records of plugins are ended, once, and before the run directory with the records is removed.
func TestPluginsOfAKilledServer(t *testing.T) {
	h := hosttest.New(t)
	h.Write("/d/version", "1")
	h.Write("/r/data-dir", "/d")
	h.Write("/r/p/a-1.json", "{}")
	h.Write("/r/p/plugin-dir1/socket", "")
	r, out := newTestReset(h, &fakeNetwork{})
	var ended []string
	r.opts.EndPlugins = func(dir string) (int, error) {
		ended = append(ended, dir)
		return 2, nil
	}
	if plan := strings.Join(r.Plan(), "\n"); !strings.Contains(plan, "stop what 1 plugin processes left behind") || len(ended) > 0 {
		t.Errorf("the plan:\n%s\nended %v", plan, ended)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ended, []string{"/r"}) || !strings.HasPrefix(out.String(), "stopped 2 plugin processes\n") {
		t.Errorf("ended %v:\n%s", ended, out)
	}
	if h.Exists("/r/p") {
		t.Error("the records are still there")
	}
	h.Write("/r/data-dir", "/d")
	h.Write("/r/p/a-1.json", "{}")
	r.opts.EndPlugins = func(string) (int, error) { return 0, errors.New("it hangs") }
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "stop the plugin processes: it hangs") {
		t.Errorf("error %v", err)
	}
}
