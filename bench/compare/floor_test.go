package compare

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/runtime/payload"
)

// The floor is what 50 pods cost when nothing manages them: for each pod a network namespace, one CNI ADD of the peers'
// configuration, one shim, and in it a sandbox (pause, with the default seccomp profile) and a container (hello). That
// is every exec that containerd makes for a pod. There are no snapshots, no databases, no cgroups per pod class,
// no logs and no status. It runs inside its own sandbox (floormain_test.go).

// floorEnv carries a floorSpec to this executable inside the sandbox.
const floorEnv = "KUBELITH_BENCH_FLOOR"

// floorSpec is what to create.
type floorSpec struct {
	Pods     int
	Parallel int // pods created at the same time
	BinDir   string
	Shim     string // upstream's
	Conflist string
	Work     string // a directory to be created, on a tmpfs as containerd's state is
	Programs string // directory of pause and hello
	Cgroup   string
}

// floorResult is what it took.
type floorResult struct{ Seconds, CPU float64 }

func measureFloor(t *testing.T, set settings) []results.Sample {
	t.Helper()
	s := harness.New(t, harness.Options{NoTestImage: true})
	dir := t.TempDir()
	binDir, err := payload.Unpack(dir)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(floorSpec{
		Pods: manyPods,
		// The kubelet works on all pods at once; two per CPU keep both CPUs busy and are not slower than 50.
		Parallel: 2 * runtime.NumCPU(),
		BinDir:   binDir,
		Shim:     filepath.Join(set.peers, payload.Shim),
		Conflist: conflist("10.42.0.0/24"),
		Work:     "/run/floor", // the sandbox's own, and short: sockets are in it
		Programs: filepath.Join(set.repo, ".cache", "payload", runtime.GOARCH),
		Cgroup:   s.CgroupRoot() + "/floor",
	})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	time.Sleep(2 * time.Second)
	cmd := s.Command(self)
	cmd.Env = append(os.Environ(), floorEnv+"="+string(spec), "PATH="+binDir+":"+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("floor: %v", err)
	}
	var r floorResult
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("floor: %v: %q", err, out)
	}
	return []results.Sample{{Figure: results.FiftyFloor, Value: r.Seconds}, {Figure: results.FloorCPU, Value: r.CPU}}
}
