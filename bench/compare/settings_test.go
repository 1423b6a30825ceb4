package compare

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/bench/results"
)

// settings come from the environment, which bench.mk sets.
type settings struct {
	peers      string // directory of the peers' programs
	repo       string
	kubelith   string
	idleRounds int
	idle       time.Duration
	peerGOGC   string
	ordered    bool
	only       []string
	// clusterCIDR is the range of the pods' addresses, disable what Kubelith does not run.
	clusterCIDR, disable string
}

// load fails the test where the peers are not built.
func load(t *testing.T) settings {
	t.Helper()
	s := settings{
		peers:    os.Getenv("BENCH_PEERS"),
		peerGOGC: os.Getenv("PEER_GOGC"),
		ordered:  os.Getenv("PEER_START") == "ordered",

		clusterCIDR: "10.42.0.0/16",
	}
	var err error
	if s.repo, err = filepath.Abs("../.."); err != nil {
		t.Fatal(err)
	}
	s.kubelith = filepath.Join(s.repo, "bin", "kubelith")
	if bin := os.Getenv("KUBELITH_BIN"); bin != "" {
		s.kubelith = bin
	}
	s.idleRounds = results.Number(t, "IDLE_ROUNDS", 2)
	s.idle = time.Duration(results.Number(t, "IDLE_SECONDS", 300)) * time.Second
	s.only = []string{results.Kubelith, results.Composition, results.Product, results.Floor}
	if only := os.Getenv("BENCH_ONLY"); only != "" {
		s.only = strings.Split(only, ",")
	}
	for _, name := range programs() {
		if _, err := os.Stat(filepath.Join(s.peers, name)); err != nil {
			t.Fatalf("BENCH_PEERS: %v: use make bench", err)
		}
	}
	requireDisk(t, os.TempDir())
	return s
}

// requireDisk fails where kubelets would evict the pods, or not start them: with upstream's defaults, below 15 % of the
// disk of images.
func requireDisk(t *testing.T, dir string) {
	t.Helper()
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	if free := 100 * disk.Bavail / disk.Blocks; free < 17 {
		t.Fatalf("%d %% of the disk of %s is free: below 15 %% kubelets evict pods, so free some of it", free, dir)
	}
}

func (s settings) wants(cluster string) bool { return slices.Contains(s.only, cluster) }
