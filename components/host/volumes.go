package host

import (
	"strings"

	"github.com/moby/sys/mountinfo"
)

// checkVolumes: claims of the StorageClass local are held to their size by quotas of the disk, or by a file system in a file.
func checkVolumes(p probe, dir string) Result {
	if hasProjectQuotas(p.files, dir) {
		return Result{Name: "volumes", Status: OK, Message: "project quotas hold them to their size"}
	}
	const remedy = ", or mount the disk with prjquota: claims of the StorageClass local wait else"
	for _, program := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := p.look(program); err != nil {
			return Result{"volumes", Warn, "nothing holds them to their size: " + program + " is missing", "install e2fsprogs" + remedy}
		}
	}
	loops := func() bool { return p.files.exists("/dev/loop-control") }
	if !loops() {
		_, _ = p.run("", "modprobe", "loop") // the file tells whether it helped
	}
	if !loops() {
		return Result{"volumes", Warn, "nothing holds them to their size: the kernel has no loop devices", "load them with `modprobe loop`" + remedy}
	}
	return Result{Name: "volumes", Status: OK, Message: "file systems in files hold them to their size"}
}

// hasProjectQuotas tells whether the mount that a directory is on enforces them.
func hasProjectQuotas(files tree, dir string) bool {
	all, err := mountinfo.GetMountsFromReader(strings.NewReader(files.text("/proc/self/mountinfo")), nil)
	if err != nil {
		return false
	}
	on := &mountinfo.Info{}
	for _, m := range all {
		if below(m.Mountpoint, dir) && len(m.Mountpoint) >= len(on.Mountpoint) {
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
