package driver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
	"kubelith.io/kubelith/plugins/examples/fuse/store"
	"kubelith.io/kubelith/plugins/examples/fuse/store/storetest"
	"kubelith.io/kubelith/plugins/pluginstest"
)

// sidecarRig is a pod with a volume of the mode sidecar, as the kubelet creates it.
type sidecarRig struct {
	t       *testing.T
	d       *Driver
	store   *storetest.Server
	options Options
	run     string // the inline volume
	path    string // the volume
	dir     string // of the sidecar
	process *exec.Cmd
}

const podUID = "0d2c7f1e-0000-4000-8000-000000000001"

func newSidecarRig(t *testing.T) *sidecarRig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse: ", err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &sidecarRig{t: t, store: &storetest.Server{}, run: filepath.Join(dir, "inline"), path: filepath.Join(dir, "volume"), dir: t.TempDir()}
	server := httptest.NewServer(r.store)
	t.Cleanup(server.Close)
	r.options = optionsFor(dir, server.URL)
	r.open()
	t.Cleanup(func() { r.d.Close() })
	return r
}

// open a driver, as a new process of the plugin does.
func (r *sidecarRig) open() {
	r.t.Helper()
	r.d = New()
	if err := r.d.Open(r.options); err != nil {
		r.t.Fatal(err)
	}
}

var manyWriters = &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}}

// publish the volume, which is staged.
func (r *sidecarRig) publish(ctx context.Context, readOnly bool) error {
	_, err := r.d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "pvc-1", StagingTargetPath: "/none", TargetPath: r.path, Readonly: readOnly,
		VolumeCapability: manyWriters, VolumeContext: map[string]string{"mode": "sidecar", attributePod: podUID}})
	return err
}

func (r *sidecarRig) inline() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{VolumeId: "csi-1", TargetPath: r.run, VolumeCapability: manyWriters, Readonly: true,
		VolumeContext: map[string]string{attributeEphemeral: "true", attributePod: podUID}}
}

// use the volume in the pod.
func (r *sidecarRig) use(readOnly bool) {
	t, ctx := r.t, r.t.Context()
	t.Helper()
	v, err := r.d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{manyWriters},
		Parameters: map[string]string{"mode": "sidecar"}, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "pvc-1", StagingTargetPath: filepath.Join(r.run, "..", "staging"),
		VolumeCapability: manyWriters, VolumeContext: v.Volume.VolumeContext}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.d.NodePublishVolume(ctx, r.inline()); err != nil {
		t.Fatal(err)
	}
	hang := time.AfterFunc(2*time.Minute, func() { unix.Unmount(r.path, unix.MNT_FORCE) }) // its waiters cannot be killed
	t.Cleanup(func() { hang.Stop() })
	t.Cleanup(r.end)
	if err := r.publish(ctx, readOnly); err != nil {
		t.Fatal(err)
	}
}

// end the pod.
func (r *sidecarRig) end() {
	r.t.Helper()
	ctx := context.Background()
	for id, path := range map[string]string{"csi-1": r.run, "pvc-1": r.path} {
		if _, err := r.d.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path}); err != nil {
			r.t.Error(err)
		}
	}
	r.stop(syscall.SIGKILL)
}

// start the client.
func (r *sidecarRig) start() {
	r.t.Helper()
	r.process = exec.Command(os.Args[0], "sidecar", r.run, r.dir)
	r.process.Stderr = os.Stderr
	if err := r.process.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.eventually("the client is ready", func() error { return client.Ready(r.dir) })
}

func (r *sidecarRig) stop(signal syscall.Signal) {
	if r.process != nil {
		r.process.Process.Signal(signal)
		r.process.Wait()
		r.process = nil
	}
	os.Remove(filepath.Join(r.dir, "status"))
}

func (r *sidecarRig) eventually(what string, f func() error) {
	r.t.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	r.t.Fatalf("%s: %v", what, err)
}

func (r *sidecarRig) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.path, name), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if got, _ := r.store.Get("pvc-1/" + name); got != content {
		r.t.Errorf("the object %s has %q", name, got)
	}
}

// program has a file open, in its own process: one that starts the client would wait for it, to close the file.
func (r *sidecarRig) program(name string) (more func(text, after string)) {
	t := r.t
	t.Helper()
	p := exec.Command("sh", "-c", `exec 3>"$0"; while read -r line; do printf "%s " "$line" >&3 && echo ok || echo failed; done`, filepath.Join(r.path, name))
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); p.Wait() })
	answers := bufio.NewScanner(out)
	return func(text, after string) {
		t.Helper()
		if _, err := fmt.Fprintln(in, text); err != nil || !answers.Scan() || answers.Text() != "ok" {
			t.Errorf("%s: %v, %q", after, err, answers.Text())
		}
	}
}

// TestSidecar: a program notices neither the death of the client nor that of the plugin; sizes hold; and all that is
// there of the pod goes with it.
func TestSidecar(t *testing.T) {
	r := newSidecarRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := r.publish(ctx, false); err == nil || !strings.Contains(err.Error(), "the pod has no sidecar") {
		t.Errorf("a pod without a sidecar: %v", err)
	}
	r.use(false)
	r.start()
	r.write("a", "1")
	more := r.program("open")
	more("first", "begin")
	r.stop(syscall.SIGKILL)
	r.start()
	more("second", "client killed")
	r.d.Close()
	more("third", "plugin away")
	r.open()
	r.write("b", "plugin restarted")
	more("fourth", "plugin restarted")
	r.stop(syscall.SIGTERM) // as at the end of the pod
	if got, _ := r.store.Get("pvc-1/open"); got != "first second third fourth " {
		t.Errorf("the open file has %q", got)
	}
	r.start()

	usage := &csi.NodeGetVolumeStatsRequest{VolumeId: "pvc-1", VolumePath: r.path}
	r.eventually("usage", func() error {
		got, err := r.d.NodeGetVolumeStats(t.Context(), usage)
		if err == nil && got.Usage[0].Total != 1<<20 {
			t.Errorf("%v", got)
		}
		return err
	})
	if err := os.WriteFile(filepath.Join(r.path, "c"), make([]byte, 1<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("more than the capacity: %v", err)
	}
	if _, err := r.d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "pvc-1", VolumePath: r.path, CapacityRange: &csi.CapacityRange{RequiredBytes: 4 << 20}}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(r.path, "c"), make([]byte, 1<<20), 0o644); err != nil {
		t.Errorf("after the expansion: %v", err)
	}
	r.end()
	if _, err := r.d.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "pvc-1", StagingTargetPath: "/none"}); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{r.options.Clients, r.options.Dir} {
		filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				t.Errorf("left: %s, %v", path, err)
			}
			return nil
		})
	}
}

// TestSidecarHasNoSecret: what the author of a pod can reach has no credentials, only the volumes of this pod, and
// cannot be changed where the plugin uses it.
func TestSidecarHasNoSecret(t *testing.T) {
	r := newSidecarRig(t)
	r.use(true)
	r.start()
	secret := r.options.Store.SecretKey
	for _, dir := range []string{r.run, r.dir} {
		filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), secret) {
					t.Errorf("%s has the secret, or %v", path, err)
				}
			}
			return err
		})
	}
	if err := os.WriteFile(filepath.Join(r.run, "a"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write where the plugin's sockets are: %v", err)
	}
	if err := os.Remove(filepath.Join(r.run, client.DriverSocket)); !errors.Is(err, syscall.EROFS) {
		t.Errorf("remove the plugin's socket: %v", err)
	}
	dial := func(context.Context) (net.Conn, error) {
		return net.Dial("unix", filepath.Join(r.run, client.StoreSocket))
	}
	if err := store.Remote("pvc-2", dial).Check(t.Context()); err == nil || !strings.Contains(err.Error(), `no volume "pvc-2"`) {
		t.Errorf("another volume: %v", err)
	}
	own := store.Remote("pvc-1", dial)
	if err := own.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := own.Stat(t.Context(), "../.kubelith/volumes/pvc-1.json"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("outside of the volume: %v", err)
	}
	if _, err := own.Put(t.Context(), "a", strings.NewReader("x"), 1, store.Meta{}); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write to what the pod may only read: %v", err)
	}
	if err := os.WriteFile(filepath.Join(r.path, "a"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v", err)
	}
}

// TestSidecarEnds: a program that waits for a client that was asked to end gets an error, and so can end. Otherwise its
// pod could not: a process in this state cannot be killed.
func TestSidecarEnds(t *testing.T) {
	r := newSidecarRig(t)
	r.use(false)
	r.start()
	r.write("a", "1")
	r.stop(syscall.SIGTERM)
	waits := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(r.path)
		waits <- err
	}()
	select {
	case err := <-waits:
		if err == nil {
			t.Error("the directory was read")
		}
	case <-time.After(60 * time.Second):
		t.Error("a program still waits for the client")
	}
}

// TestSidecarHangs: a client that answers nothing does not hold up the node.
func TestSidecarHangs(t *testing.T) {
	r := newSidecarRig(t)
	r.use(false)
	r.start()
	pluginstest.Pause(t, r.process.Process.Pid)
	waits := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(r.path)
		waits <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := r.d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "pvc-1", VolumePath: r.path}); err == nil {
		t.Error("the usage of a volume whose client hangs")
	}
	if _, err := r.d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "pvc-1", TargetPath: r.path}); err != nil {
		t.Error(err)
	}
	select {
	case err := <-waits:
		if err == nil {
			t.Error("the directory was read")
		}
	case <-time.After(30 * time.Second):
		t.Error("a program still waits for the client")
	}
}
