package local_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"kubelith.io/kubelith/plugins/builtin/local"
	"kubelith.io/kubelith/plugins/conformance"
	"kubelith.io/kubelith/plugins/conformance/csisanity"
)

// suiteVariable makes the test's executable the program that runs csi-sanity.
const suiteVariable = "KUBELITH_LOCAL_TEST_SUITE"

func TestMain(m *testing.M) {
	if os.Getenv(suiteVariable) != "" {
		if err := csisanity.Main(os.Stdin, csisanity.ResultsFile()); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// serve the driver on a plain socket.
func serve(t *testing.T, dir string) (address string) {
	t.Helper()
	d := local.New()
	if err := d.Open("node-a", filepath.Join(dir, "data"), local.Config{}, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "csi.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return "unix:" + socket
}

// TestSanity: csi-sanity finds nothing, and nothing is left behind.
func TestSanity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting volumes needs root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("block volumes need loop devices: ", err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, dir)
	t.Setenv(suiteVariable, "1")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	results, err := conformance.Storage(ctx, []string{os.Args[0]}, conformance.StorageTarget{
		Address: address, Dir: filepath.Join(dir, "mounts"), Block: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	passed := map[string]int{}
	for _, r := range results {
		access, _, _ := strings.Cut(r.Name, ":")
		switch {
		case r.Failure != "":
			t.Errorf("%s\n%s", r.Name, r.Failure)
		case r.Skipped != "":
			t.Logf("skipped: %s: %s", r.Name, r.Skipped)
		default:
			passed[access]++
		}
	}
	// What a driver does not claim is skipped: a driver that claims nothing passes everything else.
	for _, access := range []string{"mount", "block"} {
		if passed[access] < 30 {
			t.Errorf("%s: only %d tests ran and passed", access, passed[access])
		}
	}
	t.Log("passed: ", passed)
	if left, _ := os.ReadDir(filepath.Join(dir, "data/volumes")); len(left) != 0 {
		t.Errorf("%d volumes are left", len(left))
	}
}
