// Package results keeps what the benchmarks measured, does the statistics and renders the table of
// docs/performance.md. It measures nothing itself.
//
// Samples are lines of JSON in one file, so that an interrupted run goes on where it stopped and two
// programs (bench/compare and bench/requests) can write to the same file one after the other.
package results

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// The three clusters that are compared.
const (
	// Kubelith is bin/kubelith as shipped.
	Kubelith = "kubelith"
	// Composition is the same upstream versions as separate processes, with Kubelith's settings.
	Composition = "composition"
	// Product is the same processes with upstream's default settings.
	Product = "product"
	// Floor is no cluster: runc, the shim and the CNI programs alone.
	Floor = "floor"
)

// Sample is one measured value.
type Sample struct {
	// Build identifies the binary and the settings: samples of different builds are never mixed.
	Build string `json:"build"`
	// Kind is the kind of round that it comes from, Round its number from 1.
	Kind  string `json:"kind"`
	Round int    `json:"round"`
	// Cluster is one of the constants above.
	Cluster string `json:"cluster"`
	// Figure is the name of what was measured; the unit is part of the name.
	Figure string  `json:"figure"`
	Value  float64 `json:"value"`
	// Detail is for a person, for example which process uses how much.
	Detail string `json:"detail,omitempty"`
}

// Store is the file of samples.
type Store struct {
	path    string
	build   string
	samples []Sample
}

// Open reads the file, which need not exist. Samples of another build than this one are refused:
// a median over two versions is valid for neither.
func Open(path, build string) (*Store, error) {
	s := &Store{path: path, build: build}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var sample Sample
		if err := json.Unmarshal(lines.Bytes(), &sample); err != nil {
			return nil, fmt.Errorf("%s:%d: %w: remove the line", path, n, err)
		}
		if build != "" && sample.Build != build {
			return nil, fmt.Errorf("%s has results of another build (%s, now %s): remove it to start over", path, sample.Build, build)
		}
		s.samples = append(s.samples, sample)
	}
	return s, lines.Err()
}

// Done reports whether a round of a cluster is complete, which is when Add has stored it.
func (s *Store) Done(kind string, round int, cluster string) bool {
	return slices.ContainsFunc(s.samples, func(x Sample) bool {
		return x.Kind == kind && x.Round == round && x.Cluster == cluster
	})
}

// Add appends the samples of one cluster in one round with a single write.
func (s *Store) Add(kind string, round int, cluster string, samples ...Sample) error {
	var lines []byte
	for i := range samples {
		x := &samples[i]
		x.Build, x.Kind, x.Round, x.Cluster = s.build, kind, round, cluster
		line, err := json.Marshal(x)
		if err != nil {
			return fmt.Errorf("%s: %w", x.Figure, err)
		}
		lines = append(append(lines, line...), '\n')
	}
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	s.samples = append(s.samples, samples...)
	return nil
}

// Values are all values of a metric of a cluster, in the order of the rounds.
func (s *Store) Values(cluster, figure string) []float64 {
	byRound := map[int][]float64{}
	var rounds []int
	for _, x := range s.samples {
		if x.Cluster == cluster && x.Figure == figure {
			if byRound[x.Round] == nil {
				rounds = append(rounds, x.Round)
			}
			byRound[x.Round] = append(byRound[x.Round], x.Value)
		}
	}
	slices.Sort(rounds)
	var values []float64
	for _, r := range rounds {
		values = append(values, byRound[r]...)
	}
	return values
}

// Details are the details of a metric of a cluster.
func (s *Store) Details(cluster, figure string) []string {
	var out []string
	for _, x := range s.samples {
		if x.Cluster == cluster && x.Figure == figure && x.Detail != "" {
			out = append(out, x.Detail)
		}
	}
	return out
}

// Rounds is the number of complete rounds of a kind for a cluster.
func (s *Store) Rounds(kind, cluster string) int {
	seen := map[int]bool{}
	for _, x := range s.samples {
		if x.Kind == kind && x.Cluster == cluster {
			seen[x.Round] = true
		}
	}
	return len(seen)
}
