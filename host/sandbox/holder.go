package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// HolderEnv carries a holderSpec to the program that New executes again.
	HolderEnv = "KUBELITH_SANDBOX"
	// marker is a file of the sandbox's /run; a process that sees it with the sandbox's id belongs to the sandbox.
	marker = "/run/kubelith-test-id"
)

// holderSpec is what the holder sets up and takes down.
type holderSpec struct {
	Index    int
	Base     string // directory on the host's disk
	Resolver string // nameserver of the sandbox's /etc/resolv.conf
	Bridge   bool   // the host has a bridge that goes with this sandbox
}

// Hold is the process that keeps a sandbox's namespaces alive. It mounts, writes "ready" to fd 4, and waits for the
// end of its standard input: New's process closes it when done, and the kernel when that process dies. Then it removes
// the sandbox and returns. fd 3 is the locked state file, fd 5 the host's network namespace.
func Hold() error {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	status := os.NewFile(4, "status")
	var spec holderSpec
	err := json.Unmarshal([]byte(os.Getenv(HolderEnv)), &spec)
	if err == nil {
		err = mountSandbox(spec)
	}
	if err != nil {
		fmt.Fprintf(status, "%v", err)
		return err
	}
	fmt.Fprint(status, "ready")
	status.Close()
	io.Copy(io.Discard, os.Stdin)

	id := ID{Index: spec.Index, Base: spec.Base}
	err = id.teardown(true)
	if spec.Bridge {
		err = errors.Join(err, id.removeBridge(os.NewFile(5, "host")))
	}
	if err != nil {
		return fmt.Errorf("remove sandbox %d: %w", spec.Index, err)
	}
	return os.NewFile(3, "state").Truncate(0)
}

// mountSandbox makes the directories that a node writes to private. The binds are created while every mount is private
// and become shared afterwards, one by one: otherwise a kubelet's mounts would appear twice.
func mountSandbox(spec holderSpec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// A new /sys shows this network namespace's devices; the cgroups are carried over.
	keep := filepath.Join(spec.Base, "cgroup")
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return err
	}
	steps := []struct {
		what, source, target, fstype, data string
		flags                              uintptr
	}{
		{"keep cgroups", "/sys/fs/cgroup", keep, "", "", unix.MS_BIND | unix.MS_REC},
		{"mount sysfs", "sysfs", "/sys", "sysfs", "", 0},
		{"restore cgroups", keep, "/sys/fs/cgroup", "", "", unix.MS_BIND | unix.MS_REC},
	}
	for _, s := range steps {
		if err := unix.Mount(s.source, s.target, s.fstype, s.flags, s.data); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	if err := unix.Unmount(keep, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", keep, err)
	}
	for _, dir := range []string{"/etc", "/opt", "/usr/libexec"} {
		if err := overlay(spec.Base, dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/var/lib", "/var/log"} {
		own := filepath.Join(spec.Base, flat(dir))
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(own, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	os.Remove("/etc/resolv.conf") // often a link into the host's /run
	if err := os.WriteFile("/etc/resolv.conf", []byte("nameserver "+spec.Resolver+"\n"), 0o644); err != nil {
		return err
	}
	return os.WriteFile(marker, []byte(ID{Index: spec.Index}.Name()), 0o444)
}

// overlay lets the sandbox see the host's directory and keep its changes to itself.
func overlay(base, dir string) error {
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil
	}
	upper := filepath.Join(base, flat(dir), "upper")
	work := filepath.Join(base, flat(dir), "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := unix.Mount("overlay", dir, "overlay", 0, data); err != nil {
		return fmt.Errorf("overlay %s (is KUBELITH_TEST_DIR on a disk?): %w", dir, err)
	}
	return nil
}

// flat turns /var/lib into var-lib.
func flat(dir string) string { return strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-") }
