package compare

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/bench/results"
)

// settings come from the environment, which bench.mk sets.
type settings struct {
	results    string
	build      string // of the samples, see results.Sample
	peers      string // directory of the peers' programs
	repo       string
	kubelith   string
	rounds     int
	idleRounds int
	idle       time.Duration
	peerGOGC   string
	ordered    bool
	only       []string
}

// load skips the test when no benchmark was asked for.
func load(t *testing.T) settings {
	t.Helper()
	s := settings{
		results:  os.Getenv("BENCH_RESULTS"),
		build:    os.Getenv("BENCH_BUILD"),
		peers:    os.Getenv("BENCH_PEERS"),
		peerGOGC: os.Getenv("PEER_GOGC"),
		ordered:  os.Getenv("PEER_START") == "ordered",
	}
	if s.results == "" {
		t.Skip("not a benchmark run: use make bench")
	}
	var err error
	if s.repo, err = filepath.Abs("../.."); err != nil {
		t.Fatal(err)
	}
	s.kubelith = filepath.Join(s.repo, "bin", "kubelith")
	if bin := os.Getenv("KUBELITH_BIN"); bin != "" {
		s.kubelith = bin
	}
	number := func(name string, fallback int) int {
		text := os.Getenv(name)
		if text == "" {
			return fallback
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			t.Fatalf("%s=%s: want a number of at least 0", name, text)
		}
		return n
	}
	s.rounds, s.idleRounds = number("ROUNDS", 7), number("IDLE_ROUNDS", 2)
	s.idle = time.Duration(number("IDLE_SECONDS", 300)) * time.Second
	s.only = []string{results.Kubelith, results.Composition, results.Product, results.Floor}
	if only := os.Getenv("BENCH_ONLY"); only != "" {
		s.only = strings.Split(only, ",")
	}
	for _, name := range programs() {
		if _, err := os.Stat(filepath.Join(s.peers, name)); err != nil {
			t.Fatalf("BENCH_PEERS: %v: use make bench", err)
		}
	}
	return s
}

func (s settings) wants(cluster string) bool { return slices.Contains(s.only, cluster) }
