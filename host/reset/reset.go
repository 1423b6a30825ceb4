// Package reset removes what a server has left on this machine, and only what a record marks as the server's own.
package reset

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/host"
)

// Options describe what belongs to the removed server. The directories are those of `kubelith server`.
type Options struct {
	DataDir        string
	RunDir         string
	KubeletRootDir string
	RunLink        string // a symbolic link to the run directory, if there is one
	Kubeconfig     string // the admin kubeconfig, removed with the data
	Network        string // name in our CNI configuration; empty means "kubelith"
	Bridge         string // the pods' bridge; empty means "cni0"
	// Data also removes the data directory, the kubelet's directory and the admin kubeconfig. Without it a server
	// started later has the same cluster again, and recreates its pods.
	Data bool
	// EndPlugins ends the plugin processes left by a server that was killed, by the records in its run directory, and
	// returns how many there were.
	EndPlugins func(runDir string) (int, error)
	// Out gets one line for each removed thing.
	Out io.Writer
}

// Reset is what `kubelith reset` does. Create one with New, show Plan, call Run, then Close.
type Reset struct {
	opts  Options
	files host.Tree
	owned owned
	// linked are directories that were given as a symbolic link. They stay, empty: the link is the user's.
	linked map[string]bool
	locks  []*os.File
	kill   killer
	nets   network
	// stopUnits stops units of systemd; nil where systemd does not run.
	stopUnits func(ctx context.Context, names []string) error
	// neighbour reports whether another server runs here: things with a fixed name belong to it too.
	neighbour func() bool
}

// New holds the locks of the directories until Close, so that no server starts meanwhile. It fails when a server runs
// on one of them, when they belong to different servers, when not root, or when a directory is one that no program may
// remove.
func New(opts Options) (*Reset, error) {
	if opts.Network == "" {
		opts.Network = "kubelith"
	}
	if opts.Bridge == "" {
		opts.Bridge = names.Bridge
	}
	if opts.Out == nil {
		opts.Out = io.Discard
	}
	linked := map[string]bool{}
	for _, dir := range []*string{&opts.DataDir, &opts.RunDir, &opts.KubeletRootDir} {
		real, err := removable(*dir)
		if err != nil {
			return nil, err
		}
		linked[real] = host.Tree{}.IsLink(filepath.Clean(*dir))
		*dir = real
	}
	if err := datadir.Nested(map[string]string{"--data-dir": opts.DataDir, "--run-dir": opts.RunDir, "--kubelet-root-dir": opts.KubeletRootDir}); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("reset needs root: run it with sudo")
	}
	locks, err := lockAll(opts.DataDir, opts.RunDir, opts.KubeletRootDir)
	if err != nil {
		return nil, err
	}
	r := &Reset{opts: opts, files: host.Tree{}, linked: linked, locks: locks, kill: signalProcess, nets: kernelNetwork{"nft"}, neighbour: networkInUse}
	if owner := r.runOwner(); owner != (datadir.Owner{}) && !owner.Is(datadir.OwnerAt("/", opts.DataDir)) {
		return nil, errors.Join(fmt.Errorf("%s belongs to the server with --data-dir %s: use the directories of one server", opts.RunDir, owner.DataDir), r.Close())
	}
	if r.files.Exists("/run/systemd/system") { // as sd_booted(3)
		r.stopUnits = func(ctx context.Context, names []string) error {
			_, err := host.Run(ctx, "", "systemctl", append([]string{"stop"}, names...)...)
			return err
		}
	}
	return r, nil
}

// Close lets servers start again.
func (r *Reset) Close() error { return closeAll(r.locks) }

// runOwner returns the data directory that the run directory belongs to, by its mark.
func (r *Reset) runOwner() datadir.Owner {
	return datadir.ReadOwner(r.files.Path(filepath.Join(r.opts.RunDir, datadir.RunMark)))
}

// findOwned notes which directories belong to the cluster. A server has run on the data directory, or its run directory
// remains; the others name their owner in their mark. Another kubelet may own /var/lib/kubelet.
func (r *Reset) findOwned() {
	o := r.opts
	us := datadir.OwnerAt(r.files.Root+"/", o.DataDir)
	r.owned = owned{run: r.runOwner().Is(us), data: us.ID != "" || r.files.Exists(filepath.Join(o.DataDir, "version"))}
	r.owned.kubelet = r.files.Exists(o.KubeletRootDir) &&
		datadir.OwnsKubelet(r.files.Root+"/", o.DataDir, o.RunDir, o.KubeletRootDir)
}

// owned are the directories that belong to the cluster. The content of others is not inspected.
type owned struct{ run, kubelet, data bool }

// ownsAny reports whether anything belongs to the cluster.
func (r *Reset) ownsAny() bool { return r.owned != (owned{}) }

// removable returns the directory with its symbolic links resolved, or an error for one that is not Kubelith's alone.
func removable(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("directory %q: use an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	never := []string{"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/mnt", "/media", "/opt", "/proc", "/root", "/run",
		"/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/local", "/var", "/var/lib", "/var/log", "/var/run", "/var/tmp"}
	if slices.Contains(never, dir) {
		return "", fmt.Errorf("directory %s is the system's, not Kubelith's: reset does not touch it", dir)
	}
	return dir, nil
}

// Plan returns one line for each thing that Run would do now; nothing when there is nothing to do.
func (r *Reset) Plan() []string {
	r.findOwned()
	if !r.ownsAny() {
		return nil
	}
	var lines []string
	add := func(n int, format string, args ...any) {
		if n > 0 {
			lines = append(lines, fmt.Sprintf(format, args...))
		}
	}
	found := r.containers()
	add(len(found.keepers)+len(found.members), "stop %d container processes and %d keepers", len(found.members), len(found.keepers))
	add(len(r.pluginRecords()), "stop what %d plugin processes left behind", len(r.pluginRecords()))
	mounts, _ := r.mounts()
	add(len(mounts), "unmount %d mounts below %s", len(mounts), strings.Join(r.dirs(), ", "))
	loops := r.loops()
	add(len(loops), "detach %d loop devices of block volumes", len(loops))
	if bridge := r.ownBridge(); bridge != "" {
		add(1, "remove the bridge %s and its ports", bridge)
	}
	links, routes := r.nodeNetwork()
	add(len(links), "remove %d interfaces to other nodes", len(links))
	add(routes, "remove %d routes to other nodes", routes)
	tables, rules := r.packetFilter(found.ids)
	add(len(tables), "remove %d nftables tables of kube-proxy and the pod network", len(tables))
	add(len(rules), "remove %d nftables rules of pods", len(rules))
	chains := r.kubeletTables(context.Background()) // reads only
	add(len(chains), "remove the kubelet's chains from %d tables of iptables", len(chains))
	uids := r.podUIDs()
	logs, cni := r.podLogs(uids), r.cniState(found.ids)
	cgroups, _ := r.podCgroups(uids)
	add(len(logs), "remove %d log files and directories of pods", len(logs))
	add(len(cgroups), "remove %d control groups of pods", len(cgroups))
	add(len(cni), "remove %d addresses and results of the pod network", len(cni))
	for _, path := range r.toRemove() {
		add(1, "remove %s", path)
	}
	for dir, made := range map[string][]string{
		r.opts.KubeletRootDir: append(datadir.MadeByKubelet(), datadir.KubeletMark),
		r.opts.DataDir:        append(datadir.Made(), datadir.Identity()...),
	} {
		if left := r.others(dir, made); slices.Contains(r.toRemove(), dir) && len(left) > 0 {
			add(1, "but leave in %s: %s", dir, strings.Join(left, ", "))
		}
	}
	for _, dir := range r.foreignDirs() {
		add(len(lines), "leave %s: it is not this cluster's", dir)
	}
	return lines
}

// Run removes everything, in an order in which each step can succeed, and goes on after failures; the error names them
// all. Running it twice is no error.
func (r *Reset) Run(ctx context.Context) error {
	r.findOwned()
	if !r.ownsAny() {
		return nil
	}
	found := r.containers()
	uids := r.podUIDs()
	logs, cni := r.podLogs(uids), r.cniState(found.ids)
	bridge := r.ownBridge() // known from the assigned addresses, before these go
	loops := r.loops()

	running := r.stopContainers(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted before anything was removed: run reset again")
	}
	errs := []error{running, r.endPlugins()}
	errs = append(errs, r.unmountAll()...)
	errs = append(errs, r.detachLoops(loops)...)
	errs = append(errs, r.removeNetwork(ctx, bridge, found.ids)...)
	pods, around := r.podCgroups(uids)
	errs = append(errs, r.removeCgroups(ctx, pods, around)...)
	for _, path := range append(logs, cni...) {
		errs = append(errs, r.remove(path))
	}
	if running == nil && ctx.Err() == nil { // the next reset knows by the directories what is ours
		errs = append(errs, r.removeDirs()...)
	}
	for _, dir := range r.foreignDirs() {
		r.printf("left %s: it is not this cluster's", dir)
	}
	if r.neighbour() {
		r.printf("left the packet filter's tables, the bridge and the pods' directories: another server runs here")
	} else if r.opts.Data && r.owned.kubelet {
		for _, dir := range r.sharedDirs() {
			if os.Remove(r.files.Path(dir)) == nil { // fails when it is not empty
				r.printf("removed %s", dir)
			}
		}
	}
	return errors.Join(errs...)
}

// dirs are the directories below which everything is ours.
func (r *Reset) dirs() []string {
	var out []string
	for _, d := range []struct {
		path  string
		owned bool
	}{{r.opts.KubeletRootDir, r.owned.kubelet}, {r.opts.RunDir, r.owned.run}, {r.opts.DataDir, r.owned.data}} {
		if d.owned {
			out = append(out, d.path)
		}
	}
	return out
}

// foreignDirs are the given directories that exist and belong to another owner.
func (r *Reset) foreignDirs() []string {
	var out []string
	for _, dir := range []string{r.opts.RunDir, r.opts.KubeletRootDir, r.opts.DataDir} {
		if r.files.Exists(dir) && !slices.Contains(r.dirs(), dir) {
			out = append(out, dir)
		}
	}
	return out
}

// toRemove are the existing files and directories to remove; the data directory is last, because it proves that the
// others are ours.
func (r *Reset) toRemove() []string {
	var candidates []string
	for _, dir := range r.dirs() {
		if dir == r.opts.DataDir && r.ownKubeconfig() {
			candidates = append(candidates, r.opts.Kubeconfig)
		}
		candidates = append(candidates, dir)
	}
	if !r.opts.Data {
		candidates = slices.DeleteFunc(candidates, func(path string) bool { return path != r.opts.RunDir })
	}
	return slices.DeleteFunc(candidates, func(path string) bool { return !r.files.Exists(path) })
}

// removeDirs removes those; in the kubelet's and the data directory, only what we have created.
func (r *Reset) removeDirs() []error {
	var errs []error
	for _, path := range r.toRemove() {
		switch path {
		case r.opts.KubeletRootDir:
			errs = append(errs, r.clearKubelet())
		case r.opts.DataDir:
			if err := errors.Join(errs...); err != nil {
				return errs // it proves that the others are ours
			}
			errs = append(errs, r.clearData())
		default:
			errs = append(errs, r.remove(path))
		}
	}
	if r.owned.run && r.opts.RunLink != "" && r.files.IsLink(r.opts.RunLink) {
		errs = append(errs, r.remove(r.opts.RunLink))
	}
	return errs
}

// ownKubeconfig reports whether the admin kubeconfig is that of this cluster: it has its CAs. Two servers may be
// configured with the same file, or one not to use the default.
func (r *Reset) ownKubeconfig() bool {
	text := r.files.Text(r.opts.Kubeconfig)
	for _, file := range []string{pki.ClusterTrustFile, pki.ClusterCAFile} { // a server of an older release has only the second
		cas, err := os.ReadFile(r.files.Path(filepath.Join(pki.Dir(r.opts.DataDir), file)))
		if err == nil && len(cas) > 0 && strings.Contains(text, base64.StdEncoding.EncodeToString(cas)) {
			return true
		}
	}
	return false
}

// remove deletes a path and everything below it. It refuses while something is mounted below: the content of a mount (a
// network share, a disk of the user) is not ours. A path that is itself a mount stays as an empty directory.
func (r *Reset) remove(path string) error {
	if !r.files.Exists(path) {
		return nil
	}
	mounts, err := r.mountsBelow(path)
	if err != nil {
		return err
	}
	disks := false
	for _, m := range mounts {
		if path == filepath.Join(r.opts.DataDir, volumes) && filepath.Dir(m) == path { // emptied before
			disks = true
		} else if m != path {
			return fmt.Errorf("remove %s: %s is still mounted: unmount it and run reset again", path, m)
		}
	}
	if disks {
		r.printf("left %s, where disks are mounted", path)
		return nil
	}
	if len(mounts) > 0 {
		if err := r.files.Empty(path); err != nil {
			return fmt.Errorf("empty %s: %w", path, err)
		}
		r.printf("emptied %s, which is a separate mount", path)
		return nil
	}
	if err := os.RemoveAll(r.files.Path(path)); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	r.printf("removed %s", path)
	return nil
}

func (r *Reset) printf(format string, args ...any) { fmt.Fprintf(r.opts.Out, format+"\n", args...) }

// poll calls done until it returns true, ctx ends or the limit is over.
func poll(ctx context.Context, limit time.Duration, done func() bool) bool {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, limit, true, func(context.Context) (bool, error) { return done(), nil }) == nil
}
