// Package csisanity is the program that runs kubernetes-csi's conformance suite (csi-test's sanity) for
// conformance.Storage: a target comes in, results go out.
//
// It is apart because of ginkgo, on which the suite is built: package variables, flags by init(), signals, os.Exit.
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

// Sizes of the volumes when the target says none: what a test machine has.
const (
	defaultVolumeSize   = 64 << 20
	defaultExpandedSize = 128 << 20
)

// Main reads a conformance.StorageTarget from in and writes []conformance.StorageResult to out, both as JSON.
// It works once per process.
func Main(in io.Reader, out io.Writer) error {
	var target conformance.StorageTarget
	if err := json.NewDecoder(in).Decode(&target); err != nil {
		return fmt.Errorf("csi-sanity: target: %w", err)
	}
	return json.NewEncoder(out).Encode(run(target))
}

// run the suite, in a round for each way to use a volume.
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
	suite.RandomSeed = 1 // one order: what fails fails again
	reporter.NoColor = true
	ginkgo.RunSpecs(failures{}, "csi-sanity", suite, reporter)
	return results
}

// failures implements ginkgo.GinkgoTestingT: the results say what failed.
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
	c.TestVolumeSize = orDefault(t.VolumeSize, defaultVolumeSize)
	c.TestVolumeExpandSize = orDefault(t.ExpandedSize, defaultExpandedSize)
	return c
}

func orDefault(n, otherwise int64) int64 {
	if n == 0 {
		return otherwise
	}
	return n
}

func resultOf(s types.SpecReport) conformance.StorageResult {
	r := conformance.StorageResult{Name: strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")}
	switch {
	case s.State.Is(types.SpecStatePassed):
	case s.State.Is(types.SpecStateSkipped):
		r.Skipped = s.Failure.Message
		if r.Skipped == "" {
			r.Skipped = "the suite leaves it out"
		}
	case s.State.Is(types.SpecStatePending):
		r.Skipped = "the suite leaves it out"
	default:
		r.Failure = fmt.Sprintf("%s: %s (%s:%d)", s.State, strings.TrimSpace(s.Failure.Message),
			filepath.Base(s.Failure.Location.FileName), s.Failure.Location.LineNumber)
	}
	return r
}

// ResultsFile is where conformance.Storage reads the results of the process.
func ResultsFile() *os.File { return os.NewFile(conformance.ResultsFD, "results") }
