package reset

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubelith.io/kubelith/host"
)

const (
	podLogDir       = "/var/log/pods"
	containerLogDir = "/var/log/containers"
	cniDir          = "/var/lib/cni" // libcni's default
	flexVolumeDir   = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"
)

// sharedDirs are created by programs that we run, or by others on this host, the inner ones first. The kubelet removes
// the logs of a pod with its containers, and their directories up to a minute later, when it may no longer run.
func (r *Reset) sharedDirs() []string {
	out := r.files.Directories(podLogDir)
	slices.Reverse(out)
	out = append(out, podLogDir, containerLogDir, filepath.Join(cniDir, "results"), cniDir)
	for dir := flexVolumeDir; dir != "/usr/libexec"; dir = filepath.Dir(dir) {
		out = append(out, dir)
	}
	return out
}

// podUIDs returns the UIDs of the pods that our kubelet has directories for.
func (r *Reset) podUIDs() []string {
	if !r.owned.kubelet {
		return nil
	}
	return r.files.Names(filepath.Join(r.opts.KubeletRootDir, "pods"))
}

// podLogs returns the log directories of these pods, NAMESPACE_NAME_UID, and the links that point there.
func (r *Reset) podLogs(uids []string) []string {
	var out []string
	ours := map[string]bool{}
	for _, name := range r.files.Names(podLogDir) {
		if i := strings.LastIndexByte(name, '_'); i >= 0 && slices.Contains(uids, name[i+1:]) {
			ours[name] = true
			out = append(out, filepath.Join(podLogDir, name))
		}
	}
	for _, name := range r.files.Names(containerLogDir) {
		link := filepath.Join(containerLogDir, name)
		target, err := os.Readlink(r.files.Path(link))
		if rest, in := strings.CutPrefix(target, podLogDir+"/"); err == nil && in {
			if pod, _, _ := strings.Cut(rest, "/"); ours[pod] {
				out = append(out, link)
			}
		}
	}
	return out
}

// podCgroups returns the control groups of these pods in all hierarchies, and those that the kubelet creates around
// them; the deepest first.
func (r *Reset) podCgroups(uids []string) (pods, around []string) {
	for _, hierarchy := range append([]string{""}, r.files.Names(host.Cgroups)...) {
		dir := filepath.Join(host.Cgroups, hierarchy)
		if r.files.IsLink(dir) { // cgroup v1 has links such as cpu -> cpu,cpuacct
			continue
		}
		for _, name := range []string{"kubepods", "kubepods.slice"} {
			top := filepath.Join(dir, name)
			var classes []string
			foreign := false
			for _, path := range r.files.Directories(top) {
				steps := strings.Split(strings.TrimPrefix(path, top), "/")
				switch {
				case slices.ContainsFunc(steps, func(step string) bool { return slices.Contains(uids, podOfCgroup(step)) }):
					pods = append(pods, path)
				case slices.Contains(qosCgroups(), filepath.Base(path)):
					classes = append(classes, path)
				default:
					foreign = true // another kubelet keeps its pods here, and relies on its classes
				}
			}
			if !foreign {
				around = append(around, classes...)
			}
		}
	}
	deepest := func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") }
	slices.SortStableFunc(pods, deepest)
	slices.SortStableFunc(around, deepest)
	if !r.owned.kubelet || !r.files.Exists(filepath.Join(r.opts.KubeletRootDir, "pods")) || r.neighbour() {
		around = nil // our kubelet did not create them, or another one uses them
	}
	return pods, around
}

// qosCgroups are the groups around pods: all pods, and the two classes with their own group.
func qosCgroups() []string {
	return []string{"kubepods", "besteffort", "burstable", "kubepods.slice", "kubepods-besteffort.slice", "kubepods-burstable.slice"}
}

// podOfCgroup returns the UID in a name such as podUID or, with systemd, kubepods-besteffort-podUID.slice, where the
// dashes of the UID are underscores; empty when there is none.
func podOfCgroup(name string) string {
	i := strings.LastIndex(name, "pod")
	if i < 0 {
		return ""
	}
	return strings.ReplaceAll(strings.TrimSuffix(name[i+len("pod"):], ".slice"), "_", "-")
}

// removeCgroups removes the groups of our pods; those around them only when they contain no other pods.
func (r *Reset) removeCgroups(ctx context.Context, pods, around []string) []error {
	var errs []error
	// systemd recreates the groups of its slices, unless systemd itself removes them.
	var units []string
	for _, g := range append(append([]string{}, pods...), around...) {
		if unit := filepath.Base(g); strings.HasSuffix(unit, ".slice") && r.files.Exists(g) && !slices.Contains(units, unit) {
			units = append(units, unit)
		}
	}
	if len(units) > 0 && r.stopUnits != nil {
		if err := r.stopUnits(ctx, units); err != nil {
			errs = append(errs, fmt.Errorf("stop the slices of pods: %w", err))
		} else {
			r.printf("stopped %d slices of systemd", len(units))
		}
	}
	for _, g := range pods {
		if err := os.Remove(r.files.Path(g)); err == nil {
			r.printf("removed control group %s", g)
		} else if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove control group: %w", err))
		}
	}
	for _, g := range around {
		if os.Remove(r.files.Path(g)) == nil {
			r.printf("removed control group %s", g)
		}
	}
	return errs
}

// cniState returns host-local's files about our network, and libcni's about these containers: several servers on one
// host share libcni's directory.
func (r *Reset) cniState(ids map[string]bool) []string {
	var out []string
	if dir := r.addressDir(); r.files.Exists(dir) {
		out = append(out, dir)
	}
	results := filepath.Join(cniDir, "results")
	for _, name := range r.files.Names(results) { // NETWORK-ID-INTERFACE
		if rest, ours := strings.CutPrefix(name, r.opts.Network+"-"); ours {
			if i := strings.LastIndexByte(rest, '-'); i > 0 && ids[rest[:i]] {
				out = append(out, filepath.Join(results, name))
			}
		}
	}
	return out
}

// addressDir is host-local's directory: one file per address in use, and last_reserved_ip.N.
func (r *Reset) addressDir() string {
	return filepath.Join(r.opts.DataDir, "agent", "cni", r.opts.Network)
}

// addressOwners returns the ids of the containers that have an address: the first line of its file.
func (r *Reset) addressOwners() []string {
	var out []string
	for _, name := range r.files.Names(r.addressDir()) {
		if _, err := netip.ParseAddr(name); err == nil {
			id, _, _ := strings.Cut(r.files.Text(filepath.Join(r.addressDir(), name)), "\n")
			out = append(out, strings.TrimSpace(id))
		}
	}
	return out
}

// pluginRecords returns the files that name the processes of plugins, see plugins/host.
func (r *Reset) pluginRecords() []string {
	if !r.owned.run {
		return nil
	}
	return slices.DeleteFunc(r.files.Names(filepath.Join(r.opts.RunDir, "p")), func(name string) bool { return !strings.HasSuffix(name, ".json") })
}

// endPlugins ends those processes, and all that they have started.
func (r *Reset) endPlugins() error {
	if len(r.pluginRecords()) == 0 {
		return nil
	}
	n, err := r.opts.EndPlugins(r.opts.RunDir)
	if n > 0 {
		r.printf("stopped %d plugin processes", n)
	}
	if err != nil {
		return fmt.Errorf("stop the plugin processes: %w", err)
	}
	return nil
}
