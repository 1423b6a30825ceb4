package cgroups

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a group. 0 or less means no limit.
type Limits struct {
	Memory   int64 // bytes, swap included
	MilliCPU int64 // thousandths of a CPU
	PIDs     int64 // processes and threads
}

// controllers enforce the limits.
var controllers = []string{"memory", "cpu", "pids"}

// removeFor is how long a group may still be busy after its last process was killed.
const removeFor = 2 * time.Second

// Parent is where this process creates groups with limits. With v1 it is one directory for each controller, below the
// group of this process, so that limits of the whole service apply too; with v2 one for all, below the root. There, a
// systemd group that holds processes cannot have children with limits, and systemd could not restart the service in one
// that has.
type Parent struct {
	mount string
	mode  Mode
	dirs  map[string]string // by controller; with v2 the only key is ""
}

// NewParent creates the parent of groups, named name. The error says why we can limit nothing on this host.
func NewParent(name string) (*Parent, error) {
	switch mode := DetectMode(); mode {
	case V2:
		return newV2(mountpoint, name)
	case V1, Hybrid:
		return newV1(mountpoint, mode, name)
	}
	return nil, errors.New("no cgroups are mounted")
}

func newV1(mount string, mode Mode, name string) (*Parent, error) {
	own, err := v1Groups("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	p := &Parent{mount: mount, mode: mode, dirs: map[string]string{}}
	var errs []error
	for _, controller := range controllers {
		path, ok := own[controller]
		if !ok {
			errs = append(errs, fmt.Errorf("the kernel has no %s controller", controller))
			continue
		}
		dir := filepath.Join(p.v1Dir(controller, path), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		p.dirs[controller] = dir
	}
	if len(p.dirs) == 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

// v1Groups reads lines such as "4:memory:/a/b" and "2:cpu,cpuacct:/" (proc(5)).
func v1Groups(file string) (map[string]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	groups := map[string]string{}
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for name := range strings.SplitSeq(fields[1], ",") {
			groups[name] = fields[2]
		}
	}
	return groups, nil
}

// v1Dir returns the directory of a group. In a container the path may be the one outside: then the group is what is
// mounted.
func (p *Parent) v1Dir(controller, path string) string {
	dir := filepath.Join(p.mount, controller, path)
	if _, err := os.Stat(dir); err != nil {
		return filepath.Join(p.mount, controller)
	}
	return dir
}

func newV2(mount, name string) (*Parent, error) {
	dir := filepath.Join(mount, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, d := range []string{mount, dir} {
		if err := enable(d); err != nil {
			os.Remove(dir)
			return nil, err
		}
	}
	return &Parent{mount: mount, mode: V2, dirs: map[string]string{"": dir}}, nil
}

// enable gives the children of a group all controllers that it has itself. Missing reports those that the kernel
// refuses.
func enable(dir string) error {
	has, err := words(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range controllers {
		if slices.Contains(has, controller) {
			write(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller)
		}
	}
	return nil
}

func words(file string) ([]string, error) {
	content, err := os.ReadFile(file)
	return strings.Fields(string(content)), err
}

// Missing returns the controllers that limit nothing on this host.
func (p *Parent) Missing() []string {
	var missing []string
	for _, controller := range controllers {
		if p.mode == V2 {
			if has, _ := words(filepath.Join(p.dirs[""], "cgroup.subtree_control")); !slices.Contains(has, controller) {
				missing = append(missing, controller)
			}
		} else if p.dirs[controller] == "" {
			missing = append(missing, controller)
		}
	}
	return missing
}

// Dirs returns the directories that contain the groups.
func (p *Parent) Dirs() []string { return dirsOf(p.dirs) }

// Remove removes the parent, which no longer has groups.
func (p *Parent) Remove() error { return RemoveDirs(dirsOf(p.dirs)) }

// New creates a group.
func (p *Parent) New(name string, l Limits) (*Group, error) {
	g := &Group{parent: p, dirs: map[string]string{}}
	for controller, dir := range p.dirs {
		g.dirs[controller] = filepath.Join(dir, name)
		os.Remove(g.dirs[controller]) // an empty leftover
		if err := os.Mkdir(g.dirs[controller], 0o755); err != nil {
			return nil, errors.Join(err, g.Remove())
		}
	}
	if err := g.limit(l); err != nil {
		return nil, errors.Join(err, g.Remove())
	}
	return g, nil
}

// Group is a group of processes with limits.
type Group struct {
	parent *Parent
	dirs   map[string]string // as in Parent
}

// setting is a file of a controller and the value to write into it. Not every kernel has the optional ones.
type setting struct {
	controller, file, value string
	optional                bool
}

func (g *Group) limit(l Limits) error {
	for _, s := range settings(g.parent.mode, l) {
		dir := g.dir(s.controller)
		if dir == "" {
			continue // Missing reports it
		}
		file := filepath.Join(dir, s.file)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		if err := write(file, s.value); err != nil && !s.optional {
			return err
		}
	}
	return nil
}

// settings are in the order that the kernel requires: swap cannot be less than memory.
func settings(mode Mode, l Limits) []setting {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	const period = 100_000 // microseconds, the kernel's default
	var out []setting
	if l.Memory > 0 && mode == V2 {
		out = append(out, setting{"memory", "memory.max", number(l.Memory), false},
			setting{"memory", "memory.swap.max", "0", true}, setting{"memory", "memory.oom.group", "1", true})
	} else if l.Memory > 0 {
		out = append(out, setting{"memory", "memory.limit_in_bytes", number(l.Memory), false},
			setting{"memory", "memory.memsw.limit_in_bytes", number(l.Memory), true})
	}
	if quota := l.MilliCPU * period / 1000; quota > 0 && mode == V2 {
		out = append(out, setting{"cpu", "cpu.max", fmt.Sprintf("%d %d", max(quota, 1000), period), false})
	} else if quota > 0 {
		out = append(out, setting{"cpu", "cpu.cfs_period_us", number(period), false},
			setting{"cpu", "cpu.cfs_quota_us", number(max(quota, 1000)), false})
	}
	if l.PIDs > 0 {
		out = append(out, setting{"pids", "pids.max", number(l.PIDs), false})
	}
	return out
}

func (g *Group) dir(controller string) string {
	if g.parent.mode == V2 {
		return g.dirs[""]
	}
	return g.dirs[controller]
}

// Dir returns the directory of the group's memory, or of whatever it limits.
func (g *Group) Dir() string {
	if dir := g.dir("memory"); dir != "" {
		return dir
	}
	return g.Dirs()[0]
}

// Dirs returns all directories of the group.
func (g *Group) Dirs() []string { return dirsOf(g.dirs) }

func dirsOf(byController map[string]string) []string { return slices.Sorted(maps.Values(byController)) }

// Open opens the directory for clone3 (CLONE_INTO_CGROUP), which v1 does not support: nil there.
func (g *Group) Open() (*os.File, error) {
	if g.parent.mode != V2 {
		return nil, nil
	}
	return os.Open(g.dirs[""])
}

// Enter moves the calling thread into the group, so that a process that it starts begins there. leave moves it back; if
// that fails the thread must not be used any more. Only for v1, where threads of a process may be in different groups.
func (g *Group) Enter() (leave func() error, err error) {
	if g.parent.mode == V2 {
		return func() error { return nil }, nil
	}
	before, err := v1Groups("/proc/thread-self/cgroup")
	if err != nil {
		return nil, err
	}
	var back []string
	leave = func() error {
		var errs []error
		for _, dir := range back {
			errs = append(errs, write(filepath.Join(dir, "tasks"), "0")) // 0: the thread that writes
		}
		return errors.Join(errs...)
	}
	for controller, dir := range g.dirs {
		if err := write(filepath.Join(dir, "tasks"), "0"); err != nil {
			return nil, errors.Join(err, leave())
		}
		back = append(back, g.parent.v1Dir(controller, before[controller]))
	}
	return leave, nil
}

// Add moves a process into the group.
func (g *Group) Add(pid int) error {
	for _, dir := range g.dirs {
		if err := write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// Kill kills all processes of the group.
func (g *Group) Kill() error {
	_, err := Kill(g.Dirs())
	return err
}

// OOMKills returns how many processes of the group the kernel's OOM killer has killed.
func (g *Group) OOMKills() int64 {
	file := "memory.oom_control"
	if g.parent.mode == V2 {
		file = "memory.events"
	}
	n, _ := field(filepath.Join(g.dir("memory"), file), "oom_kill") // 0 if it cannot be read
	return n
}

// Remove removes the group; its processes have ended.
func (g *Group) Remove() error { return RemoveDirs(g.Dirs()) }

// Kill kills the processes in the directories of a group, and returns how many it found.
func Kill(dirs []string) (int, error) {
	killed := map[int]bool{}
	for _, dir := range dirs {
		write(filepath.Join(dir, "cgroup.kill"), "1") // all at once, with Linux 5.14 and v2; the loop then finds none
		for range 100 {                               // the next round finds processes that fork meanwhile
			pids, err := words(filepath.Join(dir, "cgroup.procs"))
			if errors.Is(err, os.ErrNotExist) || err == nil && len(pids) == 0 {
				break
			}
			if err != nil {
				return len(killed), err
			}
			for _, text := range pids {
				if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
					killed[pid] = true
					unix.Kill(pid, unix.SIGKILL)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return len(killed), nil
}

// RemoveDirs removes the directories of a group, whose processes have ended.
func RemoveDirs(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, removeDir(dir))
	}
	return errors.Join(errs...)
}

// removeDir waits until the kernel has released the last process.
func removeDir(dir string) error {
	for end := time.Now().Add(removeFor); ; time.Sleep(5 * time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// write does not create files: the files of a group exist, or the kernel does not support them.
func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
