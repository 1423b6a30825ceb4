package preflight

import (
	"strings"

	"github.com/moby/sys/mountinfo"

	"kubelith.io/kubelith/base/filetree"
	"kubelith.io/kubelith/host"
)

// checkVolumes: disk quotas, or a file system in a file, limit the size of claims of the StorageClass local.
func checkVolumes(p probe, dir string) Result {
	if hasProjectQuotas(p.files, dir) {
		return Result{Name: "volumes", Status: OK, Message: "project quotas enforce their size"}
	}
	const remedy = ", or mount the disk with prjquota: otherwise claims of the StorageClass local stay pending"
	for _, program := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := p.look(program); err != nil {
			return Result{"volumes", Warn, "their size cannot be enforced: " + program + " is missing", "install e2fsprogs" + remedy}
		}
	}
	loops := func() bool { return p.files.Exists("/dev/loop-control") }
	if !loops() {
		_, _ = p.run("", "modprobe", "loop") // the file shows whether it helped
	}
	if !loops() {
		return Result{"volumes", Warn, "their size cannot be enforced: the kernel has no loop devices", "load them with `modprobe loop`" + remedy}
	}
	return Result{Name: "volumes", Status: OK, Message: "file systems in files enforce their size"}
}

// hasProjectQuotas reports whether the mount that a directory is on enforces them.
func hasProjectQuotas(files host.Tree, dir string) bool {
	all, _ := files.Mounts() // without /proc there are none
	on := &mountinfo.Info{}
	for _, m := range all {
		if filetree.Below(m.Mountpoint, dir) && len(m.Mountpoint) >= len(on.Mountpoint) {
			on = m
		}
	}
	for _, option := range strings.Split(on.VFSOptions, ",") {
		if option == "prjquota" || option == "pquota" {
			return true
		}
	}
	return false
}
