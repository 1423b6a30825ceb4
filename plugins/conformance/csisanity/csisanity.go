// Package csisanity is the program that runs kubernetes-csi's conformance suite (csi-test's sanity) for
// conformance.Storage: it reads a target and writes results. cmd/kubelith-plugin-check is its main.
//
// It is separate because the suite is built on ginkgo: package variables, flags in init(), signals, os.Exit.
package csisanity

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	"kubelith.io/kubelith/plugins/conformance"
)

// Sizes of volumes in bytes, small enough for a test machine.
const volumeSize, expandedSize = 64 << 20, 128 << 20

// Main reads a conformance.StorageTarget from in and writes []conformance.StorageResult to out, both as JSON.
// It works once per process.
func Main(in io.Reader, out io.Writer) error {
	var target conformance.StorageTarget
	if err := json.NewDecoder(in).Decode(&target); err != nil {
		return fmt.Errorf("csi-sanity: target: %w", err)
	}
	return json.NewEncoder(out).Encode(run(target))
}

// run runs the suite, with one round per access type.
func run(t conformance.StorageTarget) (results []conformance.StorageResult) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	for _, access := range accessTypes(t) {
		config := configOf(t, access)
		ginkgo.Describe(access+":", func() { sanity.GinkgoTest(&config) })
	}
	ginkgo.ReportAfterSuite("results", func(r types.Report) {
		for _, s := range r.SpecReports {
			if s.LeafNodeType == types.NodeTypeIt || s.Failed() {
				results = append(results, resultOf(s))
			}
		}
	})
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.RandomSeed = 1 // always the same order, so that failures are reproducible
	reporter.NoColor = true
	ginkgo.RunSpecs(failures{}, "csi-sanity", suite, reporter)
	return results
}

// failures implements ginkgo.GinkgoTestingT. It does nothing: the results have the failures.
type failures struct{}

func (failures) Fail() {}

func accessTypes(t conformance.StorageTarget) []string {
	if t.Block {
		return []string{"mount", "block"}
	}
	return []string{"mount"}
}

func configOf(t conformance.StorageTarget, access string) sanity.TestConfig {
	c := sanity.NewTestConfig()
	c.Address = t.Address
	c.TargetPath = filepath.Join(t.Dir, access+"-target")
	c.StagingPath = filepath.Join(t.Dir, access+"-staging")
	c.TestVolumeAccessType = access
	c.TestVolumeParameters = t.Parameters
	c.TestVolumeSize = volumeSize
	c.TestVolumeExpandSize = expandedSize
	return c
}

func resultOf(s types.SpecReport) conformance.StorageResult {
	r := conformance.StorageResult{Name: strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")}
	switch {
	case s.State.Is(types.SpecStatePassed):
	case s.State.Is(types.SpecStateSkipped):
		r.Skipped = s.Failure.Message
		if r.Skipped == "" {
			r.Skipped = "the suite skips it"
		}
	case s.State.Is(types.SpecStatePending):
		r.Skipped = "the suite skips it"
	default:
		r.Failure = fmt.Sprintf("%s: %s (%s:%d)", s.State, strings.TrimSpace(s.Failure.Message),
			filepath.Base(s.Failure.Location.FileName), s.Failure.Location.LineNumber)
	}
	return r
}

// ResultsFile returns the file from which conformance.Storage reads the results.
func ResultsFile() *os.File { return os.NewFile(conformance.ResultsFD, "results") }
