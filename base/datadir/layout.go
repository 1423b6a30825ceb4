package datadir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubelith.io/kubelith/base/filetree"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

// Names in a data directory that several packages use. The keys' is pki.Dir.
const (
	Etcd       = "server/db"                   // etcd's data directory; it may be a disk of its own
	Member     = Etcd + "/member"              // exists once etcd has data
	Encryption = "server/cred/encryption.yaml" // the keys of Secrets
	Manifests  = "server/manifests"            // the user's
	Containerd = "agent/containerd"            // containerd's root
)

// Made are the names that a node creates in its data directory. It excludes snapshots, and what users put there:
// server/manifests, agent/images, agent/static-pods and the plugins. Add every new name here, or reset leaves it.
func Made() []string {
	return []string{
		Etcd, "server/former", "server/member.json", "server/tls", "server/cred", "server/token", "server/profile",
		Manifests + "/.directory", Restoring,
		Containerd, "agent/cni", "agent/images/.imported.json", "agent/pki", "agent/identity.key",
		"agent/" + names.ClusterInfoKey, "agent/servers.json", "agent/former-cas.json", "agent/wireguard.key",
		"plugins/state", "plugins/data", "data", SettingsFile, ballastFile, Upgrading, "upgrades", UpgradeLock,
	}
}

// Identity are the files that identify a data directory. They are removed last, and only when everything else is gone.
func Identity() []string { return []string{"lock", idFile, "version"} }

// Restoring exists while a snapshot is being restored.
const Restoring = "server/.restoring"

// UpgradeLock is locked by the process that upgrades the cluster from this machine.
const UpgradeLock = "upgrade-cluster.lock"

// Upgrading exists while kubelith upgrade replaces the program. In it are Saved once a snapshot is saved, and Returning
// while the data of before is put back.
const (
	Upgrading = "upgrade"
	Saved     = Upgrading + "/snapshot"
	Returning = Upgrading + "/returning"
)

// Dropped are the directories for the user's files, before the first start or later, and for snapshots, which outlive
// their cluster.
func Dropped() []string {
	return []string{Manifests, "server/snapshots", "agent/images", "agent/static-pods", "plugins/admission", "plugins/scheduling", "plugins/storage"}
}

// MadeByKubelet are the names that a kubelet creates in its directory, as patterns. seccomp and config.json are the
// user's.
func MadeByKubelet() []string {
	return []string{"pods", "plugins", "plugins_registry", "containers", "plugin-containers", "pod-resources", "pods-api", "device-plugins", "checkpoints",
		"image_manager", "pki", "*_state", KubeletMark + ".tmp"}
}

// strange returns what is in a directory and not Kubelith's, at most three names: the directory has another owner.
func strange(dir string) ([]string, error) {
	known := map[string]bool{"lost+found": true, "version.tmp": true, idFile + ".tmp": true, SettingsFile + ".tmp": true}
	for _, path := range slices.Concat(Made(), Identity(), Dropped()) {
		known[path] = true
		known[filepath.Dir(path)] = true
	}
	var found []string
	look := func(below string) error {
		entries, err := os.ReadDir(filepath.Join(dir, below))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if path := filepath.Join(below, e.Name()); !known[path] && len(found) < 3 {
				found = append(found, path)
			}
		}
		return nil
	}
	if err := look(""); err != nil {
		return nil, err
	}
	for _, below := range []string{"server", "agent", "plugins"} {
		if info, err := os.Stat(filepath.Join(dir, below)); err == nil && info.IsDir() {
			if err := look(below); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// checkNew refuses a directory in which no Kubelith has run and which is not empty: its content would be removed with
// the cluster.
func checkNew(dir string) error {
	if exists(filepath.Join(dir, "version")) {
		return nil
	}
	found, err := strange(dir)
	if err != nil {
		return unusable(dir, err)
	}
	if len(found) > 0 {
		return fmt.Errorf("data directory %s has other files (%s): use a separate directory for --data-dir", dir, strings.Join(found, ", "))
	}
	return nil
}

// CheckCluster refuses a server's data directory with a missing part: a late mount, a wrong path, an incomplete backup.
// Without this check the server would create a new cluster, which no agent and no kubeconfig knows. It writes nothing.
func CheckCluster(dir string) error {
	has := func(name string) bool { return exists(filepath.Join(dir, name)) }
	if _, err := os.Lstat(filepath.Join(dir, Restoring)); err == nil { // below a file in the directory's place there is another error
		return fmt.Errorf("data directory %s: the restore of a snapshot was interrupted: run kubelith snapshot restore again", dir)
	}
	if _, err := os.Lstat(filepath.Join(dir, Returning)); err == nil {
		return fmt.Errorf("data directory %s: the rollback of a failed upgrade was interrupted: run the same kubelith upgrade again", dir)
	}
	keys := pki.Dir(dir)
	authority, member := exists(filepath.Join(keys, pki.ClusterCAFile)), has(Member)
	const remedy = "mount or restore it; for a new cluster run kubelith reset --data first"
	traces := []string{SettingsFile, Containerd, "plugins/state", "plugins/data"}
	if i := slices.IndexFunc(traces, has); i >= 0 && !authority && !member {
		return fmt.Errorf("data directory %s has a cluster's %s, but %s with its data and keys is missing: %s",
			dir, traces[i], filepath.Join(dir, "server"), remedy)
	}
	if member && !authority {
		return fmt.Errorf("data directory %s has a cluster's data, but its CA (%s) is missing: restore %s from a backup",
			dir, filepath.Join(keys, pki.ClusterCAFile), keys)
	}
	// The token is written once the API has answered.
	if authority && !member && has("server/token") && !has("server/member.json") { // a server among others gets the data from them
		return fmt.Errorf("data directory %s has a cluster's keys, but its data (%s) is missing: %s", dir, filepath.Join(dir, Member), remedy)
	}
	return nil
}

// Nested returns an error when one of the directories is inside another or the same: neither could be removed without
// the other. Keys of dirs are their settings.
func Nested(dirs map[string]string) error {
	for inner, a := range dirs {
		for outer, b := range dirs {
			if inner != outer && filetree.Below(resolvedParent(b), resolvedParent(a)) {
				return fmt.Errorf("%s %s is in %s %s: use directories that do not contain each other", inner, a, outer, b)
			}
		}
	}
	return nil
}

// resolvedParent resolves the links in the existing part of a path.
func resolvedParent(path string) string {
	rest := ""
	for dir := filepath.Clean(path); ; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return filepath.Clean(path)
		}
	}
}

// private checks that no other user can put files into a directory that root trusts. It removes the right of others to
// write, and to open it: who can open a directory can lock it, and keep the next start from it.
func private(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if owner, ok := ownerOf(info); ok && owner != os.Geteuid() {
		return fmt.Errorf("directory %s belongs to user %d, who could put other files there: chown root it, or use another", f.Name(), owner)
	}
	if info.Mode().Perm()&0o026 != 0 {
		return f.Chmod(info.Mode().Perm() &^ fs.FileMode(0o026))
	}
	return nil
}

func keepPrivate(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return unusable(dir, err)
	}
	defer f.Close()
	return private(f)
}
