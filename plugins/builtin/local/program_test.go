package local_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"kubelith.io/kubelith/plugins/builtin/local"
	"kubelith.io/kubelith/plugins/pluginstest"
	"kubelith.io/kubelith/plugins/proto"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// start the program as a host does, and describe it.
func start(t *testing.T, program, dir string) (*grpc.ClientConn, *pluginv1.Description, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(program)
	conn := pluginstest.Start(t, cmd)
	d, err := pluginv1.NewPluginClient(conn).Describe(t.Context(), &pluginv1.DescribeRequest{
		Protocol: proto.Version, Name: "local", NodeName: "node-a", DataDir: dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	return conn, d, cmd
}

// TestProgram: the program is a plugin that declares driver and class; and however often it is killed while it makes
// volumes, those that it has answered for are there, and no others are promised.
func TestProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kubelith-local")
	if out, err := exec.Command("go", "build", "-o", program, "./cmd").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	made := map[string]bool{}
	var mu sync.Mutex
	for round := range 5 {
		conn, d, cmd := start(t, program, dir)
		declares(t, d)
		var wg sync.WaitGroup
		for worker := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					name := fmt.Sprintf("v-%d-%d-%d", round, worker, i)
					_, err := csi.NewControllerClient(conn).CreateVolume(t.Context(), &csi.CreateVolumeRequest{
						Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
						VolumeCapabilities: []*csi.VolumeCapability{{
							AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
							AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
						}},
					})
					if status.Code(err) == codes.Unavailable {
						return // killed
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					made[name] = true
					mu.Unlock()
				}
			})
		}
		time.Sleep(time.Duration(20+30*round) * time.Millisecond) // somewhere in the middle of it
		for enough := false; !enough && !t.Failed(); time.Sleep(time.Millisecond) {
			mu.Lock()
			enough = len(made) >= 2*(round+1)
			mu.Unlock()
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
	if len(made) < 10 {
		t.Fatalf("only %d volumes were made", len(made))
	}
	conn, _, _ := start(t, program, dir)
	list, err := csi.NewControllerClient(conn).ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, e := range list.GetEntries() {
		there[e.GetVolume().GetVolumeId()] = true
	}
	for name := range made {
		if !there[name] {
			t.Errorf("%s was lost", name)
		}
	}
	// Each worker may have been killed between the volume and the answer.
	directories, err := os.ReadDir(filepath.Join(dir, "volumes"))
	if err != nil || len(directories) != len(there) || len(there) > len(made)+5*4 {
		t.Errorf("%d answered, %d listed, %d directories, %v", len(made), len(there), len(directories), err)
	}
}

// declares checks what the host creates objects from.
func declares(t *testing.T, d *pluginv1.Description) {
	t.Helper()
	var driver storagev1.CSIDriver
	var class storagev1.StorageClass
	s := d.GetStorage()
	if len(s.GetStorageClasses()) != 1 || !s.GetNodeLocal() {
		t.Fatalf("%v", d)
	}
	if err := errors.Join(json.Unmarshal(s.GetCsiDriver(), &driver), json.Unmarshal(s.GetStorageClasses()[0], &class)); err != nil {
		t.Fatal(err)
	}
	if driver.Name != local.Name || class.Provisioner != local.Name || class.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" {
		t.Errorf("%+v, %+v", driver, class)
	}
}
