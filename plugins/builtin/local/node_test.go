package local

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// host is a driver whose mounts and devices are gone after the test.
type host struct {
	*Driver
	dir string
}

func newHost(t *testing.T) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting volumes needs root")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: dir}
	h.Driver = h.process(t)
	t.Cleanup(func() {
		all, _ := readMounts()
		for _, m := range slices.Backward(all) {
			if rel, err := filepath.Rel(dir, m.Mountpoint); err == nil && filepath.IsLocal(rel) {
				unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
			}
		}
		images, _ := filepath.Glob(filepath.Join(dir, "data/*/*/"+imageFile))
		for _, image := range images {
			detachLoop(image)
		}
	})
	return h
}

// process is another one of the driver, on the same volumes.
func (h *host) process(t *testing.T) *Driver {
	t.Helper()
	d := New()
	if err := d.Open("node-a", filepath.Join(h.dir, "data"), Config{}, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	return d
}

func (h *host) target(name string) string { return filepath.Join(h.dir, name) }

func capability(m mode, access csi.VolumeCapability_AccessMode_Mode, flags ...string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: access}}
	if m == block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: flags}}
	}
	return c
}

const multi, single = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER

// create a volume that is a plain directory, or a device.
func (h *host) make(t *testing.T, name string, m mode) {
	t.Helper()
	h.makeEnforced(t, name, m, none, 4<<20)
}

func (h *host) makeEnforced(t *testing.T, name string, m mode, e enforcement, size int64) {
	t.Helper()
	_, err := h.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{capability(m, multi)},
		Parameters: map[string]string{parameterEnforcement: string(e)},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// staging is where the kubelet stages a volume.
func (h *host) staging(id string) string { return filepath.Join(h.dir, "staging-"+id) }

func (h *host) publish(t *testing.T, d *Driver, id, target string, c *csi.VolumeCapability, readonly bool) error {
	if err := os.MkdirAll(h.staging(id), 0o750); err != nil {
		return err
	}
	_, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: h.staging(id), VolumeCapability: c})
	if err != nil {
		return err
	}
	_, err = d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: h.staging(id), TargetPath: h.target(target), VolumeCapability: c, Readonly: readonly,
	})
	return err
}

func (h *host) unpublish(t *testing.T, id, target string) error {
	_, err := h.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: h.target(target)})
	return err
}

func mountsAt(t *testing.T, target string) (n int) {
	t.Helper()
	all, err := readMounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.Mountpoint == target {
			n++
		}
	}
	return n
}

// TestPublish: what one pod writes another one reads, read-only is, and a mount is created once however often and by
// however many processes it is requested.
func TestPublish(t *testing.T) {
	h := newHost(t)
	h.make(t, "v", filesystem)
	both := []*Driver{h.Driver, h.process(t)} // as while a plugin is replaced
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := h.publish(t, both[i%2], "v", "a", capability(filesystem, multi, "noexec"), false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := mountsAt(t, h.target("a")); n != 1 {
		t.Errorf("%d mounts", n)
	}
	if err := h.publish(t, h.Driver, "v", "b", capability(filesystem, multi), true); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.target("a/file"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(h.target("b/file")); err != nil || string(got) != "data" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.WriteFile(h.target("b/file"), nil, 0o644); err == nil {
		t.Error("a read-only volume was written to")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(h.target("a"), &fs); err != nil || fs.Flags&unix.ST_NOEXEC == 0 {
		t.Errorf("noexec is not set: %x, %v", fs.Flags, err)
	}
	if err := h.publish(t, h.Driver, "v", "c", capability(filesystem, single), false); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second writer: %v", err)
	}
	if err := h.publish(t, h.Driver, "v", "b", capability(filesystem, multi), false); status.Code(err) != codes.AlreadyExists {
		t.Errorf("to write where it is read-only: %v", err)
	}
	if _, err := h.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("deleted while it is mounted: %v", err)
	}
	for range 2 {
		for _, target := range []string{"a", "b"} {
			if err := h.unpublish(t, "v", target); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := os.Stat(h.target("a")); !os.IsNotExist(err) {
		t.Errorf("the target is there: %v", err)
	}
	if _, err := h.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}); err != nil {
		t.Error(err)
	}
}

// TestPublishAfterKill: the process before ended between mount and its options.
func TestPublishAfterKill(t *testing.T) {
	h := newHost(t)
	h.make(t, "v", filesystem)
	n, _ := h.node()
	if err := os.Mkdir(h.target("a"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := bind(filepath.Join(n.store.volumeDir("v"), dataDir), h.target("a"), 0); err != nil {
		t.Fatal(err)
	}
	if err := h.publish(t, h.Driver, "v", "a", capability(filesystem, multi), true); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.target("a/file"), nil, 0o644); err == nil {
		t.Error("a read-only volume was written to")
	}
	if n := mountsAt(t, h.target("a")); n != 1 {
		t.Errorf("%d mounts", n)
	}
}

// TestPodEndsWithoutVolume: a pod can end whatever became of its volume's directory.
func TestPodEndsWithoutVolume(t *testing.T) {
	h := newHost(t)
	h.make(t, "v", filesystem)
	if err := h.publish(t, h.Driver, "v", "a", capability(filesystem, multi), false); err != nil {
		t.Fatal(err)
	}
	n, _ := h.node()
	if err := os.RemoveAll(n.store.volumeDir("v")); err != nil {
		t.Fatal(err)
	}
	if err := h.unpublish(t, "v", "a"); err != nil {
		t.Error(err)
	}
	if _, err := h.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: h.staging("v")}); err != nil {
		t.Error(err)
	}
}

// deviceSize of a block device, in bytes.
func deviceSize(t *testing.T, path string) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Seek(0, 2)
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// TestBlock: a device of the right size whose bytes stay, that grows while it is open, is attached once and not left
// behind.
func TestBlock(t *testing.T) {
	h := newHost(t)
	h.make(t, "v", block)
	c := capability(block, multi)
	other := h.process(t)
	var wg sync.WaitGroup
	for i, d := range []*Driver{h.Driver, other, h.Driver, other} {
		wg.Go(func() {
			if err := h.publish(t, d, "v", fmt.Sprint("d", i), c, false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n, _ := h.node()
	v, _ := n.store.get("v")
	if mounts, err := n.store.mountsOf(v); err != nil || len(mounts) != 4 {
		t.Fatalf("%+v, %v", mounts, err)
	}
	if got := deviceSize(t, h.target("d0")); got != 4<<20 {
		t.Errorf("%d bytes", got)
	}
	open, err := os.OpenFile(h.target("d0"), os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	page := bytes.Repeat([]byte("kubelith"), 512)
	if _, err := open.WriteAt(page, 1<<20); err != nil {
		t.Fatal(err)
	}
	r, err := h.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 8 << 20}})
	if err != nil || !r.GetNodeExpansionRequired() {
		t.Fatalf("%v, %v", r, err)
	}
	if _, err := other.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: h.target("d1")}); err != nil {
		t.Fatal(err)
	}
	if _, err := open.WriteAt(page, 7<<20); err != nil {
		t.Errorf("the device did not grow: %v", err)
	}
	open.Close()
	unstage := func() error {
		_, err := h.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: h.staging("v")})
		return err
	}
	if err := unstage(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("detached under its pods: %v", err)
	}
	for i := range 4 {
		if err := h.unpublish(t, "v", fmt.Sprint("d", i)); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := unstage(); err != nil {
			t.Error(err)
		}
	}
	image := n.store.file(v, imageFile)
	if device, err := findLoop(image); err != nil || device != "" {
		t.Errorf("%s is left, %v", device, err)
	}
	// Published without being staged, as after a reboot of the host.
	_, err = h.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: h.staging("v"), TargetPath: h.target("again"), VolumeCapability: c})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(page))
	f, err := os.Open(h.target("again"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int64{1 << 20, 7 << 20} {
		if _, err := f.ReadAt(got, at); err != nil || !bytes.Equal(got, page) {
			t.Errorf("at %d: %v", at, err)
		}
	}
}

// TestStats: of the volume's own files, not of the disk.
func TestStats(t *testing.T) {
	h := newHost(t)
	h.make(t, "v", filesystem)
	if err := h.publish(t, h.Driver, "v", "a", capability(filesystem, multi), false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.target("a/file"), make([]byte, 5<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := h.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: h.target("a")})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range r.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES && (u.GetTotal() != 4<<20 || u.GetUsed() < 5<<20 || u.GetUsed() > 6<<20 || u.GetAvailable() != 0) {
			t.Errorf("%v", u)
		}
		if u.GetUnit() == csi.VolumeUsage_INODES && u.GetUsed() != 2 {
			t.Errorf("%v", u)
		}
	}
}
