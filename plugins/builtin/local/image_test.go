package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fill writes until the disk is full, at most limit bytes, and returns how many it wrote.
func fill(t *testing.T, path string, limit int64) int64 {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chunk := bytes.Repeat([]byte("kubelith"), 8<<10)
	for written := int64(0); written < limit; {
		n, err := f.Write(chunk)
		written += int64(n)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return written
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return limit
}

func diskFree(t *testing.T, path string) int64 {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	return int64(fs.Bavail) * fs.Bsize
}

func (h *host) expand(t *testing.T, id, path string, size int64) error {
	t.Helper()
	r, err := h.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: size}})
	if err != nil {
		t.Fatal(err)
	}
	if !r.GetNodeExpansionRequired() {
		return nil
	}
	_, err = h.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: path})
	return err
}

func (h *host) unstage(t *testing.T, id string) error {
	t.Helper()
	_, err := h.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: h.staging(id)})
	return err
}

// needImages skips where no file system can be put in a file.
func needImages(t *testing.T) {
	t.Helper()
	if err := newExt4().usable(); err != nil {
		t.Skip(err)
	}
}

// TestFile: a file system in a file has what was promised and no more, keeps its data through everything that ends a
// mount, grows while pods write to it where the kernel lets us, and leaves nothing behind.
func TestFile(t *testing.T) {
	needImages(t)
	for name, e := range map[string]ext4{"grows": {grows: true}, "has headroom": {grows: false}} {
		t.Run(name, func(t *testing.T) { testFile(t, e) })
	}
	t.Run("grows unmounted", func(t *testing.T) {
		loseSysResource(t)
		testFile(t, ext4{grows: true})
	})
}

// loseSysResource takes CAP_SYS_RESOURCE from the test's thread, which ends with the test.
func loseSysResource(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	sets[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	if err := unix.Capset(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
}

func testFile(t *testing.T, e ext4) {
	h := newHost(t)
	n, _ := h.node()
	n.store.images = e
	const size = 10 << 20
	h.makeEnforced(t, "v", filesystem, file, size)
	c := capability(filesystem, multi)
	for _, target := range []string{"a", "b"} {
		if err := h.publish(t, h.Driver, "v", target, c, target == "b"); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(h.target("a")); err != nil || len(entries) != 0 {
		t.Errorf("a new volume holds %v, %v", entries, err)
	}
	if info, err := os.Stat(h.target("a")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(h.target("a/kept"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(n.store.volumeDir("v"), dataDir, "kept")); err != nil || string(got) != "data" {
		t.Errorf("in the volume's directory: %q, %v", got, err)
	}
	if err := os.WriteFile(h.target("b/file"), nil, 0o600); err == nil {
		t.Error("a read-only volume was written to")
	}
	before := diskFree(t, h.dir)
	if n := fill(t, h.target("a/big"), 64<<20); n < size || n > size+128<<10 {
		t.Errorf("%d bytes fit into a volume of %d", n, size)
	}
	if after := diskFree(t, h.dir); after < before-2*size-16<<20 {
		t.Errorf("the disk lost %d bytes", before-after)
	}
	stats, err := h.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: h.target("a")})
	if err != nil || stats.GetUsage()[0].GetTotal() < size || stats.GetUsage()[0].GetTotal() > size+128<<10 || stats.GetUsage()[0].GetAvailable() > 64<<10 {
		t.Errorf("statistics: %v, %v", stats, err)
	}
	if err := h.publish(t, h.Driver, "v", "c", capability(filesystem, single), false); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second writer: %v", err)
	}

	err = h.expand(t, "v", h.target("a"), 2*size)
	if newExt4().grows || !e.grows {
		if err != nil {
			t.Fatal(err)
		}
	} else if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without CAP_SYS_RESOURCE: %v", err)
	} else { // then when its pods have ended
		h.end(t, "v", "a", "b")
		if err := h.publish(t, h.Driver, "v", "a", c, false); err != nil {
			t.Fatal(err)
		}
		if free := diskFree(t, h.target("a")); free < size-128<<10 || free > size+128<<10 {
			t.Errorf("grown while it was not mounted, it has %d bytes more", free)
		}
		if err := h.expand(t, "v", h.target("a"), 2*size); err != nil {
			t.Errorf("expanded while it was not mounted: %v", err)
		}
	}
	if n := fill(t, h.target("a/more"), 64<<20); n < size-128<<10 || n > size+128<<10 {
		t.Errorf("after expansion by %d, %d bytes more fit", size, n)
	}

	if err := h.unstage(t, "v"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("unmounted under its pods: %v", err)
	}
	if _, err := h.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("deleted under its pods: %v", err)
	}
	h.end(t, "v", "a", "b")
	v, _ := n.store.get("v")
	h.noLoop(t, n.store.file(v, imageFile))
	if _, err := os.Lstat(n.store.file(v, dataDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link to its files outlives the mount: %v", err)
	}
	// Published without being staged, by another process, as after a reboot of the host.
	if err := os.MkdirAll(h.staging("v"), 0o750); err != nil {
		t.Fatal(err)
	}
	other := h.process(t)
	_, err = other.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: "v", StagingTargetPath: h.staging("v"), TargetPath: h.target("again"), VolumeCapability: c,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(h.target("again/kept")); err != nil || string(got) != "data" {
		t.Errorf("%q, %v", got, err)
	}
	if n := fill(t, h.target("again/full"), 64<<20); n > 128<<10 {
		t.Errorf("mounted again, %d bytes more fit", n)
	}
	h.end(t, "v", "again")
	if _, err := h.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}); err != nil {
		t.Error(err)
	}
}

// TestGrownUnmountedKeepsSize: a volume whose file system has to be unmounted to grow has no more than its size as soon
// as it is staged, though there is room: its journal stays as small as the volume was.
func TestGrownUnmountedKeepsSize(t *testing.T) {
	needImages(t)
	const size = 1 << 30
	h := newHost(t)
	n, _ := h.node()
	n.store.images = ext4{grows: true}
	loseSysResource(t)
	h.makeEnforced(t, "v", filesystem, file, 10<<20)
	if err := h.expand(t, "v", h.target("a"), size); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(h.staging("v"), 0o750); err != nil {
		t.Fatal(err)
	}
	_, err := h.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: h.staging("v"), VolumeCapability: capability(filesystem, multi)})
	if err != nil {
		t.Fatal(err)
	}
	if free := diskFree(t, h.staging("v")); free < size-128<<10 || free > size+128<<10 {
		t.Errorf("a volume of %d bytes has %d", size, free)
	}
	h.end(t, "v")
}

// TestDeleteStaged: a volume that no pod has is deleted though it is staged, as a kubelet leaves it that is killed
// between NodeUnpublishVolume and NodeUnstageVolume.
func TestDeleteStaged(t *testing.T) {
	needImages(t)
	h := newHost(t)
	h.makeEnforced(t, "v", filesystem, file, 10<<20)
	if err := h.publish(t, h.Driver, "v", "a", capability(filesystem, multi), false); err != nil {
		t.Fatal(err)
	}
	if err := h.unpublish(t, "v", "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}); err != nil {
		t.Fatal(err)
	}
	if n := mountsAt(t, h.staging("v")); n != 0 {
		t.Errorf("%d mounts are left where the volume was staged", n)
	}
	if err := h.unstage(t, "v"); err != nil {
		t.Errorf("unstaged after it was deleted: %v", err)
	}
}

// end the pods of a volume, as the kubelet does.
func (h *host) end(t *testing.T, id string, targets ...string) {
	t.Helper()
	for _, target := range targets {
		if err := h.unpublish(t, id, target); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := h.unstage(t, id); err != nil {
			t.Fatal(err)
		}
	}
	if n := mountsAt(t, h.staging(id)); n != 0 {
		t.Errorf("%d mounts are left where the volume was staged", n)
	}
}

func (h *host) noLoop(t *testing.T, image string) {
	t.Helper()
	if device, err := findLoop(image); err != nil || device != "" {
		t.Errorf("%s is left, %v", device, err)
	}
}

// TestRepairKilled: a check that a signal ends has repaired nothing, and a deadline ends none.
func TestRepairKilled(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for script, works := range map[string]bool{"kill -9 $$": false, "exit 4": false, "exit 1": true, "exit 0": true} {
		if err := os.WriteFile(filepath.Join(dir, "e2fsck"), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := repair(ended, "image"); (err == nil) != works {
			t.Errorf("%s: %v", script, err)
		}
	}
}

// TestFileDamaged: a file system that was cut off in the middle is repaired, and one beyond that is refused with the
// command to run.
func TestFileDamaged(t *testing.T) {
	needImages(t)
	h := newHost(t)
	h.makeEnforced(t, "v", filesystem, file, 10<<20)
	n, _ := h.node()
	v, _ := n.store.get("v")
	image := n.store.file(v, imageFile)
	debugfs := func(command string) {
		if out, err := exec.Command("debugfs", "-w", "-R", command, image).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	debugfs("set_super_value state 0") // not unmounted
	c := capability(filesystem, multi)
	if err := h.publish(t, h.Driver, "v", "a", c, false); err != nil {
		t.Fatal(err)
	}
	h.end(t, "v", "a")
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := h.publish(t, h.Driver, "v", "a", c, false); err == nil || !bytes.Contains([]byte(err.Error()), []byte("`e2fsck "+image+"`")) {
		t.Errorf("without a superblock: %v", err)
	}
	h.noLoop(t, image)
}

// TestImageRoom: what mkfs.ext4 makes of an image has room for the requested size.
func TestImageRoom(t *testing.T) {
	needImages(t)
	h := newHost(t)
	for _, size := range []int64{1, 1 << 20, 100 << 20, 1 << 30, 20 << 30, 300 << 30} {
		image, at := h.target(fmt.Sprint(size)), h.target("at")
		if err := (ext4{grows: true}).format(t.Context(), image, size); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := mountLoop(image, "test", at); err != nil {
			t.Fatal(err)
		}
		free := diskFree(t, at)
		var st unix.Stat_t
		if err := errors.Join(unbind(at), unix.Stat(image, &st)); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d: image %d, on disk %d, free %d (%+.1f %%)", size, imageSize(size), st.Blocks*512, free, 100*float64(free-size)/float64(size))
		if free < size || free > size+size/20+16<<20 {
			t.Errorf("%d bytes were asked for, %d are free", size, free)
		}
		if now, err := fileSystemSize(image); err != nil || now != imageSize(size) {
			t.Errorf("%d: the file system has %d of %d, %v", size, now, imageSize(size), err)
		}
		if err := os.Remove(image); err != nil {
			t.Fatal(err)
		}
	}
}

// TestQuota: the kernel holds a directory to its size, counts it, lets it grow, and forgets it with the volume.
func TestQuota(t *testing.T) {
	for fs, mkfs := range map[string][]string{"ext4": {"mkfs.ext4", "-q", "-O", "quota,project"}, "xfs": {"mkfs.xfs", "-q"}} {
		t.Run(fs, func(t *testing.T) { testQuota(t, fs, mkfs) })
	}
}

func testQuota(t *testing.T, fstype string, mkfs []string) {
	h := newHost(t)
	disk, at := h.target("disk"), h.target("data")
	f, err := os.Create(disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(400<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mkfs[0], append(mkfs[1:], disk)...).CombinedOutput(); err != nil {
		t.Skipf("%s: %v: %s", mkfs[0], err, out)
	}
	d, err := openLoop(disk, "test", unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := unix.Mount(d.Name(), at, fstype, 0, "prjquota"); err != nil {
		t.Skipf("this kernel mounts no %s with prjquota (CONFIG_QFMT_V2, CONFIG_XFS_QUOTA): %v", fstype, err)
	}
	h.Driver = h.process(t)
	const size = 10 << 20
	h.makeEnforced(t, "v", filesystem, auto, size)
	h.makeEnforced(t, "w", filesystem, auto, size)
	n, _ := h.node()
	v, err := n.store.get("v")
	if err != nil || v.Enforcement != quota {
		t.Fatalf("%+v, %v", v, err)
	}
	c := capability(filesystem, multi)
	for _, id := range []string{"v", "w"} {
		if err := h.publish(t, h.Driver, id, id, c, false); err != nil {
			t.Fatal(err)
		}
	}
	// By another program, and without the capability that lets root exceed quotas: as a pod.
	dd := func(id, name string) int64 {
		path := h.target(id + "/" + name)
		exec.Command("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "dd", "if=/dev/zero", "of="+path, "bs=64K", "count=1024").Run()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if got := dd("v", "big"); got < size-64<<10 || got > size {
		t.Errorf("%d bytes fit into a quota of %d", got, size)
	}
	if err := os.WriteFile(h.target("w/file"), []byte("data"), 0o600); err != nil {
		t.Errorf("the other volume is full too: %v", err)
	}
	stats, err := h.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: h.target("v")})
	if err != nil || stats.GetUsage()[0].GetTotal() != size || stats.GetUsage()[0].GetAvailable() > 64<<10 || stats.GetUsage()[1].GetTotal() != minFiles {
		t.Errorf("statistics: %v, %v", stats, err)
	}
	if err := h.expand(t, "v", h.target("v"), 2*size); err != nil {
		t.Fatal(err)
	}
	if got := dd("v", "more"); got < size-64<<10 || got > size {
		t.Errorf("after expansion by %d, %d bytes more fit", size, got)
	}
	for _, id := range []string{"v", "w"} {
		h.end(t, id, id)
	}
	if err := n.store.destroy(n.store.volumeDir("v")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) { // XFS frees in the background
		u, err := n.store.projects.usage(n.store.dir, v.Project)
		if err == nil && u == (projectUsage{}) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the project outlives its volume: %+v, %v", u, err)
		}
	}
	// Mounted without quotas: volumes go on, and new ones get something else.
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(d.Name(), at, fstype, 0, ""); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if err := h.Open("node-a", at, Config{}, hclog.New(&hclog.LoggerOptions{Output: &log})); err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(&log); !bytes.Contains(text, []byte("prjquota")) {
		t.Errorf("the log does not say that limits are lost: %s", text)
	}
	h.makeEnforced(t, "x", filesystem, auto, size)
	n, _ = h.node()
	if x, err := n.store.get("x"); err != nil || x.Enforcement != file {
		t.Errorf("%+v, %v", x, err)
	}
	if err := h.publish(t, h.Driver, "w", "w", c, false); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(h.target("w"), "file")); err != nil || string(got) != "data" {
		t.Errorf("%q, %v", got, err)
	}
}
