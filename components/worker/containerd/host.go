package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/containerd/platforms"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/runtime/cgroups"
	"kubelith.io/kubelith/runtime/oci"
	"kubelith.io/kubelith/runtime/payload"
)

// host has what the configuration depends on.
type host struct {
	platform       string // "linux/amd64"
	snapshotter    string
	systemdCgroup  bool
	runtimes       []oci.Runtime
	selinux        bool
	capSysResource bool
}

// Snapshotter returns the snapshotter that Run uses for this root: "overlayfs", or "native" where the kernel or the
// file system does not support overlays.
func Snapshotter(root string) string {
	if overlayutils.Supported(root) != nil {
		return "native"
	}
	return "overlayfs"
}

func detectHost(ctx context.Context, root string, log logrus.FieldLogger) host {
	h := host{
		platform:       platforms.Format(platforms.DefaultSpec()),
		snapshotter:    Snapshotter(root),
		systemdCgroup:  cgroups.DetectCgroupDriver() == cgroups.DriverSystemd,
		selinux:        selinux.GetEnabled(),
		capSysResource: hasCapability(unix.CAP_SYS_RESOURCE),
	}
	if h.snapshotter != "overlayfs" {
		log.Warnf("overlayfs does not work on %s: images are copied for every container instead, which is slow and takes space", root)
	}
	this := oci.This(ctx)
	for _, name := range oci.OfHost() {
		r, err := this.Find(name)
		switch {
		case err == nil:
			h.runtimes = append(h.runtimes, r)
			log.Infof("%s %s in %s can start containers: RuntimeClass %s", r.Name, r.Version, r.Path, r.Name)
		case !errors.Is(err, oci.ErrMissing):
			log.Infof("%s is not used: %v", name, err)
		}
	}
	return h
}

// hasCapability reports whether the capability is in the effective set of this process.
func hasCapability(capability uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // bits 0-31 and 32-63
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

// Limits of a unix socket's path: sun_path holds 108 bytes with the final zero (unix(7)), containerd stops at 104.
const (
	maxSocketPath = 104
	shimSocketLen = len("/") + 64 // a shim's socket is named by a SHA-256
	sunPathMax    = 107
	// MaxState is the longest Options.State, in bytes.
	MaxState = sunPathMax - shimSocketLen - len(shimSockets)
)

// preflight finds errors that containerd would report late, unclearly or not at all.
func (o Options) preflight() error {
	for name, path := range map[string]string{"root": o.Root, "state": o.State, "socket": o.Socket, "bin": o.BinDir} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("the containerd %s path %q is not absolute", name, path)
		}
	}
	if n := len(o.Socket + ".ttrpc"); n > maxSocketPath {
		return fmt.Errorf("socket path %s.ttrpc is %d bytes long, and at most %d are possible: choose a shorter run directory",
			o.Socket, n, maxSocketPath)
	}
	if n := len(o.State); n > MaxState {
		return fmt.Errorf("state directory %s is too long by %d bytes for the sockets of the shims: choose a shorter run directory", o.State, n-MaxState)
	}
	if err := os.MkdirAll(o.Root, 0o700); err != nil {
		return fmt.Errorf("create the containerd root: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(o.Root, &st); err != nil {
		return fmt.Errorf("check the file system of %s: %w", o.Root, err)
	}
	if st.Flags&unix.ST_NOEXEC != 0 || st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("%s is mounted noexec or read-only: containers cannot run from there, choose another data directory", o.Root)
	}
	for _, program := range []string{payload.Runc, payload.Shim, payload.Keeper, payload.Pause} {
		if _, err := os.Stat(filepath.Join(o.BinDir, program)); err != nil {
			return fmt.Errorf("a program of the payload is missing: %w", err)
		}
	}
	return nil
}
