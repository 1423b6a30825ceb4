package datadir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/pki"
)

// The marks: files in each directory of a node that name its owner. Only a mark makes a directory ours, so it is
// written when the directory is taken and not before. Its first line is the path of the data directory and its second
// that directory's id, which identifies the owner after a move.
const (
	RunMark     = "data-dir"  // in the run directory
	KubeletMark = ".kubelith" // in the kubelet's directory
)

// idFile has the id of the data directory. It is written when the node's directories have their marks: a data directory
// that has run pods and has no id was last used by a release that wrote no mark into the kubelet's directory.
const idFile = "id"

// Owner is the content of a mark, or the identity of a data directory. The zero value is no owner.
type Owner struct{ DataDir, ID string }

// ReadOwner reads a mark; without one it returns the zero Owner.
func ReadOwner(mark string) Owner {
	data, err := os.ReadFile(mark)
	if err != nil {
		return Owner{}
	}
	first, second, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	return Owner{DataDir: strings.TrimSpace(first), ID: strings.TrimSpace(second)}
}

// OwnerAt returns the data directory as an Owner. root is the root of the host's files: "/", or a test's directory.
func OwnerAt(root, dataDir string) Owner {
	id, err := os.ReadFile(filepath.Join(root, dataDir, idFile))
	if err != nil {
		return Owner{DataDir: dataDir}
	}
	return Owner{DataDir: dataDir, ID: strings.TrimSpace(string(id))}
}

// Is reports whether both are the same data directory, at the same path or moved.
func (o Owner) Is(other Owner) bool {
	return o.ID != "" && o.ID == other.ID || o.DataDir != "" && resolved(o.DataDir) == resolved(other.DataDir)
}

func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// OwnsKubelet reports whether the kubelet's directory belongs to the data directory: its mark says so, or there is no
// mark and the data directory's last server wrote none but has run pods, on a directory without traces of another
// distribution.
func OwnsKubelet(root, dataDir, runDir, kubeletRoot string) bool {
	if kubeletRuns(root, kubeletRoot) {
		return false // this process holds the lock: that kubelet is another program
	}
	us := OwnerAt(root, dataDir)
	if mark := ReadOwner(filepath.Join(root, kubeletRoot, KubeletMark)); mark != (Owner{}) {
		return mark.Is(us)
	}
	return us.ID == "" && ranPods(root, us, runDir) && len(present(root, kubeletRoot, foreignTraces())) == 0
}

// ranPods reports whether containerd has run from the data directory, or since the last boot from its run directory. A
// refused start leaves neither.
func ranPods(root string, us Owner, runDir string) bool {
	if exists(filepath.Join(root, us.DataDir, Containerd, "io.containerd.metadata.v1.bolt")) {
		return true
	}
	return ReadOwner(filepath.Join(root, runDir, RunMark)).Is(us) && exists(filepath.Join(root, runDir, "containerd"))
}

// foreignTraces are what kubelets of other distributions keep in their directory, and ours never does.
func foreignTraces() []string {
	return []string{"config.yaml", "kubeadm-flags.env", "kubeconfig", "bootstrap-kubeconfig", "pki", "instance-config.yaml"}
}

// kubeletTraces are what any kubelet creates. They exclude what users and other programs put there first:
// device-plugins, plugins, seccomp, config.json.
func kubeletTraces() []string {
	return append(foreignTraces(), "pods", "pod-resources", "checkpoints", "cpu_manager_state", "memory_manager_state", "dra_manager_state",
		"allocated_pods_state", "actuated_pods_state")
}

func present(root, dir string, names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !exists(filepath.Join(root, dir, name)) })
}

// kubeletRuns reports whether a kubelet serves a socket below the directory.
func kubeletRuns(root, kubeletRoot string) bool {
	data, err := os.ReadFile(filepath.Join(root, "/proc/net/unix"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 8 {
			if dir, is := strings.CutSuffix(fields[7], "/pod-resources/kubelet.sock"); is && resolved(dir) == resolved(kubeletRoot) {
				return true
			}
		}
	}
	return false
}

// mayTakeKubelet refuses the kubelet's directory when it has another owner.
func (d *Dir) mayTakeKubelet(runDir, dir string) error {
	owner := ReadOwner(filepath.Join(dir, KubeletMark))
	switch {
	case kubeletRuns("/", dir):
		return fmt.Errorf("a kubelet runs on %s already: stop its cluster, or use another --kubelet-root-dir", dir)
	case d.fresh && owner.ID != "" && resolved(owner.DataDir) == resolved(d.path) && !exists(pki.Dir(d.path)):
		// A late mount looks like this. A restored data directory has keys.
		return fmt.Errorf("data directory %s is empty, but %s has pods of its node: mount or restore it; "+
			"for a new node run kubelith reset --data first", d.path, dir)
	case OwnsKubelet("/", d.path, runDir, dir):
		return nil
	case owner.alive():
		return belongsTo(dir, owner, "--kubelet-root-dir")
	case owner != (Owner{}):
		return nil // its cluster is gone
	}
	if traces := present("/", dir, kubeletTraces()); len(traces) > 0 {
		return fmt.Errorf("directory %s is another kubelet's (it has %s): remove that cluster first, or use another --kubelet-root-dir",
			dir, strings.Join(traces, ", "))
	}
	return nil
}

// mayTakeRun refuses the run directory when it has containers of another data directory.
func (d *Dir) mayTakeRun(dir string) error {
	owner := ReadOwner(filepath.Join(dir, RunMark))
	if !owner.Is(OwnerAt("/", d.path)) && owner.alive() && exists(filepath.Join(dir, "containerd")) {
		return belongsTo(dir, owner, "--run-dir")
	}
	return nil
}

// alive reports whether the data directory still exists.
func (o Owner) alive() bool { return o.DataDir != "" && exists(filepath.Join(o.DataDir, "version")) }

func belongsTo(dir string, owner Owner, setting string) error {
	return fmt.Errorf("directory %s belongs to --data-dir %s: remove that one with kubelith reset --data --data-dir %[2]s, or use another %[3]s",
		dir, owner.DataDir, setting)
}

// mark writes the marks, and then the id of the data directory.
func (d *Dir) mark(marks []string) error {
	us := OwnerAt("/", d.path)
	if us.ID == "" {
		us.ID = rand.Text()
	}
	for _, path := range marks {
		if err := writeDurably(path, us.DataDir+"\n"+us.ID+"\n"); err != nil {
			return fmt.Errorf("cannot write to directory %s (%w): make it writable or use another", filepath.Dir(path), err)
		}
	}
	if err := writeDurably(filepath.Join(d.path, idFile), us.ID+"\n"); err != nil {
		return unusable(d.path, err)
	}
	return nil
}

// writeDurably replaces a file so that a crash leaves the old or the new one. It does not touch a file that already has
// the content.
func writeDurably(path, content string) error {
	if data, err := os.ReadFile(path); err == nil && string(data) == content {
		return nil
	}
	return atomicfile.Write(path, []byte(content))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
