package driver

import (
	"context"
	"net"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"kubelith.io/kubelith/plugins/conformance"
	"kubelith.io/kubelith/plugins/conformance/csisanity"
	"kubelith.io/kubelith/plugins/examples/fuse/client"
	"kubelith.io/kubelith/plugins/examples/fuse/store"
	"kubelith.io/kubelith/plugins/examples/fuse/store/storetest"
)

// roleVariable makes the test's executable a client, or the program that runs csi-sanity.
const roleVariable = "KUBELITH_FUSE_TEST_SUITE"

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 4 && os.Args[1] == "client":
		if err := client.Run(context.Background(), os.Args[2], os.Args[3], func(s string) { os.Stderr.WriteString(s + "\n") }); err != nil {
			os.Exit(1)
		}
	case len(os.Args) == 4 && os.Args[1] == "sidecar":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := client.RunSidecar(ctx, os.Args[2], os.Args[3], func(s string) { os.Stderr.WriteString(s + "\n") })
		stop()
		if err != nil {
			panic(err)
		}
	case os.Getenv(roleVariable) != "":
		if err := csisanity.Main(os.Stdin, csisanity.ResultsFile()); err != nil {
			panic(err)
		}
	default:
		os.Exit(m.Run())
	}
}

// newDriver returns an open driver, with a store.
func newDriver(t *testing.T) (*Driver, *storetest.Server, string) {
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
	s := &storetest.Server{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	o := optionsFor(dir, server.URL)
	d := New()
	if err := d.Open(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d, s, dir
}

func optionsFor(dir, url string) Options {
	return Options{Name: "node-a", Dir: filepath.Join(dir, "data"), Program: []string{os.Args[0]}, Log: hclog.NewNullLogger(), Config: Config{
		Clients: filepath.Join(dir, "clients"),
		Store:   &store.Config{Endpoint: url, Bucket: storetest.Bucket, AccessKey: "a", SecretKey: "not-for-pods"},
	}}
}

// TestSanity: csi-sanity finds nothing, and nothing is left behind.
func TestSanity(t *testing.T) {
	d, s, dir := newDriver(t)
	listener, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	t.Setenv(roleVariable, "1")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	results, err := conformance.Storage(ctx, []string{os.Args[0]}, conformance.StorageTarget{
		Address: "unix:" + filepath.Join(dir, "csi.sock"), Dir: filepath.Join(dir, "mounts"), Parameters: map[string]string{"mode": "process"},
	})
	if err != nil {
		t.Fatal(err)
	}
	passed := 0
	for _, r := range results {
		switch {
		case r.Failure != "":
			t.Errorf("%s\n%s", r.Name, r.Failure)
		case r.Skipped != "":
			t.Logf("skipped: %s: %s", r.Name, r.Skipped)
		default:
			passed++
		}
	}
	if passed < 40 {
		t.Errorf("only %d tests ran and passed", passed)
	}
	t.Log("passed: ", passed)
	if left := s.Keys(""); len(left) != 0 {
		t.Errorf("left in the store: %q", left)
	}
}

// use a new volume at a path, as the kubelet does.
func use(t *testing.T, d *Driver, dir string) (path string) {
	t.Helper()
	ctx := t.Context()
	capability := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}}
	v, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{capability},
		Parameters: map[string]string{"mode": "process"}, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	if _, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.Volume.VolumeId, StagingTargetPath: staging,
		VolumeCapability: capability, VolumeContext: v.Volume.VolumeContext}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if _, err := d.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.Volume.VolumeId, TargetPath: target}); err != nil {
			t.Error(err)
		}
		if _, err := d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.Volume.VolumeId, StagingTargetPath: staging}); err != nil {
			t.Error(err)
		}
	})
	if _, err := d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: v.Volume.VolumeId, StagingTargetPath: staging, TargetPath: target,
		VolumeCapability: capability, VolumeContext: v.Volume.VolumeContext}); err != nil {
		t.Fatal(err)
	}
	return target
}

// TestClientKilled: the driver starts another client, which continues.
func TestClientKilled(t *testing.T) {
	d, s, dir := newDriver(t)
	path := use(t, d, dir)
	if err := os.WriteFile(filepath.Join(path, "a"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	n, err := d.node()
	if err != nil {
		t.Fatal(err)
	}
	m := n.mount("pvc-1")
	conn, err := client.Dial(m.Client)
	if err != nil {
		t.Fatal(err)
	}
	a, _, err := conn.Do(t.Context(), client.Request{Op: "status"}, -1)
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(a.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	conn.Wait(t.Context())
	if err := os.WriteFile(filepath.Join(path, "b"), []byte("2"), 0o644); err != nil {
		t.Error(err)
	}
	if keys := s.Keys("pvc-1/"); len(keys) != 2 {
		t.Errorf("the store has %q", keys)
	}
	usage, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "pvc-1", VolumePath: path})
	if err != nil || usage.Usage[0].Total != 1<<20 {
		t.Errorf("%v, %v", usage, err)
	}
	if err := os.WriteFile(filepath.Join(path, "c"), make([]byte, 1<<20), 0o644); err == nil {
		t.Error("more than the capacity is written")
	}
	if _, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 4 << 20}}); err != nil {
		t.Error(err)
	}
	if _, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "pvc-1", VolumePath: path, CapacityRange: &csi.CapacityRange{RequiredBytes: 4 << 20}}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(path, "c"), make([]byte, 1<<20), 0o644); err != nil {
		t.Errorf("after the expansion: %v", err)
	}
}

// TestStoreAway: a volume whose store is away is not mounted, and the error says why.
func TestStoreAway(t *testing.T) {
	d, s, dir := newDriver(t)
	s.Away(true)
	capability := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if _, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "pvc-2", VolumeCapabilities: []*csi.VolumeCapability{capability}}); err == nil || !strings.Contains(err.Error(), "store http") {
		t.Errorf("create: %v", err)
	}
	stage := &csi.NodeStageVolumeRequest{VolumeId: "static", StagingTargetPath: filepath.Join(dir, "staging"), VolumeCapability: capability,
		VolumeContext: map[string]string{"mode": "process", "path": "some/where", "capacity": "1Mi"}}
	for begin := time.Now(); ; { // the client may take longer to start
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := d.NodeStageVolume(ctx, stage)
		cancel()
		if err != nil && strings.Contains(err.Error(), "store http") {
			break
		}
		if err == nil || time.Since(begin) > 30*time.Second {
			t.Fatalf("stage: %v", err)
		}
	}
	s.Away(false)
	if _, err := d.NodeStageVolume(t.Context(), stage); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "staging/a"), []byte("1"), 0o644); err != nil {
		t.Error(err)
	}
	if got, _ := s.Get("some/where/a"); got != "1" {
		t.Errorf("the object has %q", got)
	}
	f, err := os.Create(filepath.Join(dir, "staging/b"))
	if err != nil {
		t.Fatal(err)
	}
	s.Away(true)
	if _, err := f.WriteString("2"); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err == nil {
		t.Error("close while the store is away succeeds")
	}
	unstage := &csi.NodeUnstageVolumeRequest{VolumeId: "static", StagingTargetPath: filepath.Join(dir, "staging")}
	if _, err := d.NodeUnstageVolume(t.Context(), unstage); err == nil || !strings.Contains(err.Error(), "not everything is uploaded") {
		t.Errorf("unstage: %v", err)
	}
	s.Away(false)
	if _, err := d.NodeUnstageVolume(t.Context(), unstage); err != nil {
		t.Error(err)
	}
	if got, _ := s.Get("some/where/b"); got != "2" {
		t.Errorf("the object has %q", got)
	}
}
