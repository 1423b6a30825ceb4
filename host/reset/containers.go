package reset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/filetree"
	"kubelith.io/kubelith/base/procstat"
	"kubelith.io/kubelith/host"
)

// keeperNames are the programs that hold containers: keepers, and the shims of earlier releases.
var keeperNames = []string{"kubelith-keeper", "containerd-shim-runc-v2"}

// taskDirs are where there is one directory (an OCI bundle) per running container, below the run directory: that of
// runtime/tasks, and containerd's own.
var taskDirs = []string{"containerd/io.kubelith.tasks", "containerd/io.containerd.runtime.v2.task"}

const (
	// termGrace is how long containers may take to end by themselves.
	termGrace = 3 * time.Second
	// killGrace is how long the kernel may take after SIGKILL.
	killGrace = 10 * time.Second
)

// killer sends a signal.
type killer func(pid int, signal unix.Signal) error

func signalProcess(pid int, signal unix.Signal) error {
	if err := unix.Kill(pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// process is one line of ps.
type process struct {
	pid, parent int
	name        string
	exe         string   // what /proc/PID/exe links to
	args        []string // may be set by the process itself
	cgroups     []string // paths, one per hierarchy
	mounts      string   // its mount namespace
}

// processes lists all processes of the host; it leaves out those that end meanwhile.
func processes(files host.Tree) []process {
	var out []process
	for _, entry := range files.Names("/proc") {
		pid, err := strconv.Atoi(entry)
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", entry)
		stat, err := procstat.Parse(files.Text(filepath.Join(dir, "stat")))
		if err != nil || stat.Ended() {
			continue
		}
		p := process{pid: pid, parent: stat.Parent, name: stat.Name}
		p.exe, _ = os.Readlink(files.Path(filepath.Join(dir, "exe")))
		p.mounts = mountNamespace(files, entry)
		p.args = strings.Split(strings.TrimRight(files.Text(filepath.Join(dir, "cmdline")), "\x00"), "\x00")
		for _, line := range strings.Split(files.Text(filepath.Join(dir, "cgroup")), "\n") {
			if parts := strings.SplitN(line, ":", 3); len(parts) == 3 {
				p.cgroups = append(p.cgroups, parts[2])
			}
		}
		out = append(out, p)
	}
	return out
}

// mountNamespace identifies the mount namespace of a process (an entry of /proc).
func mountNamespace(files host.Tree, entry string) string {
	link, _ := os.Readlink(files.Path(filepath.Join("/proc", entry, "ns/mnt")))
	return link
}

// containers are the processes of this server's pods.
type containers struct {
	keepers []process
	members []process       // of containers: children of the keepers, and whatever is in the containers' control groups
	ids     map[string]bool // of sandboxes and containers
}

// containers finds them by the keepers, which record their owner, and by the bundles of containers whose keeper is
// gone.
func (r *Reset) containers() containers {
	all := processes(r.files)
	found := containers{ids: map[string]bool{}}
	ours := map[int]bool{}
	for _, p := range all {
		if r.isOurKeeper(p) {
			found.keepers = append(found.keepers, p)
			ours[p.pid] = true
			if i := slices.Index(p.args, "-id"); i >= 0 && i+1 < len(p.args) {
				found.ids[p.args[i+1]] = true
			}
		}
	}
	for _, id := range r.addressOwners() {
		found.ids[id] = true
	}
	groups := r.bundleCgroups(found.ids)
	for more := true; more; { // down the tree: each round adds the children of the last
		more = false
		for _, p := range all {
			if !ours[p.pid] && p.pid != os.Getpid() && (ours[p.parent] || inGroups(p, groups)) {
				ours[p.pid] = true
				found.members = append(found.members, p)
				more = true
			}
		}
	}
	return found
}

// isOurKeeper reports whether its program is from our payload, or it reports to our containerd. A path identifies the
// owner only in one mount namespace: several nodes of one host have the same paths, each in its own namespace.
func (r *Reset) isOurKeeper(p process) bool {
	if p.mounts != mountNamespace(r.files, "self") {
		return false
	}
	exe := strings.TrimSuffix(p.exe, " (deleted)")
	if slices.Contains(keeperNames, filepath.Base(exe)) && filetree.Below(filepath.Join(r.opts.DataDir, "data"), exe) {
		return true
	}
	if len(p.args) == 0 || !slices.Contains(keeperNames, filepath.Base(p.args[0])) {
		return false
	}
	i := slices.Index(p.args, "-address")
	if !r.owned.run || i < 0 || i+1 >= len(p.args) {
		return false
	}
	return filetree.Below(r.opts.RunDir, p.args[i+1]) || r.opts.RunLink != "" && filetree.Below(r.opts.RunLink, p.args[i+1])
}

// bundleCgroups reads the control groups from the containers' OCI configurations, and adds their ids.
func (r *Reset) bundleCgroups(ids map[string]bool) []string {
	var groups []string
	if !r.owned.run {
		return nil
	}
	for _, dir := range taskDirs {
		tasks := filepath.Join(r.opts.RunDir, dir)
		for _, namespace := range r.files.Names(tasks) {
			for _, id := range r.files.Names(filepath.Join(tasks, namespace)) {
				ids[id] = true
				if g := r.bundleCgroup(filepath.Join(tasks, namespace, id)); g != "" {
					groups = append(groups, g)
				}
			}
		}
	}
	return groups
}

// bundleCgroup returns "" for a bundle without a control group.
func (r *Reset) bundleCgroup(bundle string) string {
	var spec struct {
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	}
	if json.Unmarshal([]byte(r.files.Text(filepath.Join(bundle, "config.json"))), &spec) != nil {
		return ""
	}
	return cgroupPart(spec.Linux.CgroupsPath)
}

// cgroupPart returns the part of a path in /proc/PID/cgroup that identifies members of a cgroupsPath: the path itself,
// or the scope's name in systemd's form SLICE:PREFIX:NAME.
func cgroupPart(path string) string {
	if parts := strings.Split(path, ":"); len(parts) == 3 {
		return "/" + parts[1] + "-" + parts[2] + ".scope"
	}
	if path = filepath.Clean("/" + path); path == "/" {
		return ""
	}
	return path
}

func inGroups(p process, groups []string) bool {
	for _, have := range p.cgroups {
		for _, g := range groups {
			if strings.Contains(have+"/", g+"/") {
				return true
			}
		}
	}
	return false
}

// StopPods ends the processes of all pods, with SIGTERM first, and their keepers. Everything else of the node stays: a
// server that starts later starts the pods again.
func (r *Reset) StopPods(ctx context.Context) error {
	if r.findOwned(); !r.ownsAny() {
		return nil
	}
	return r.stopContainers(ctx)
}

// stopContainers ends the containers' processes, with SIGTERM first, and then the keepers.
func (r *Reset) stopContainers(ctx context.Context) error {
	first := r.containers()
	if len(first.keepers)+len(first.members) == 0 {
		return nil
	}
	for _, p := range first.members {
		_ = r.kill(p.pid, unix.SIGTERM) // those that stay get SIGKILL
	}
	poll(ctx, termGrace, func() bool { return len(r.containers().members) == 0 })
	gone := poll(ctx, killGrace, func() bool {
		now := r.containers()
		for _, p := range append(now.members, now.keepers...) {
			_ = r.kill(p.pid, unix.SIGKILL) // the next round sees whether it worked
		}
		return len(now.members)+len(now.keepers) == 0
	})
	for _, p := range first.members {
		r.printf("stopped container process %d (%s)", p.pid, p.name)
	}
	for _, p := range first.keepers {
		r.printf("stopped keeper %d", p.pid)
	}
	if !gone {
		left := r.containers()
		if n := len(left.members) + len(left.keepers); n > 0 {
			return fmt.Errorf("%d container processes do not end: wait or reboot, then run reset again", n)
		}
	}
	return ctx.Err()
}
