// Package conformance runs a sample of upstream's conformance tests, which it names in sample.txt, on a server and an
// agent.
package conformance

import (
	"context"
	_ "embed"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/integration/harness"
)

//go:embed sample.txt
var sample string

func TestMain(m *testing.M) { harness.Main(m) }

// TestSample has a subtest for each test of upstream's.
func TestSample(t *testing.T) {
	dir := os.Getenv("KUBELITH_CONFORMANCE_SUITE")
	if dir == "" {
		t.Skip("no suite: run make conformance-suite, and set KUBELITH_CONFORMANCE_SUITE to the directory that it prints")
	}
	archive, err := os.ReadFile(filepath.Join(dir, "images.tar"))
	if err != nil {
		t.Fatal(err)
	}
	node := harness.Options{NoTestImage: true, Env: []string{harness.DetectMutations}, Prepare: func(s *harness.Server) error {
		path := s.Path(harness.DataDir + "/agent/images/conformance.tar")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		return os.WriteFile(path, archive, 0o600)
	}}
	c := harness.StartCluster(t, harness.ClusterOptions{Server: node, Agent: node, Agents: 1})
	for _, n := range c.Nodes() {
		harness.Eventually(t, time.Minute, "the images to be imported", func() error {
			if out := n.RunBinary(t, "ctr", "images", "list", "--quiet").Stdout; strings.Count(out, "/agnhost:") < 2 || !strings.Contains(out, "/busybox:") {
				return errors.New(out)
			}
			return nil
		})
	}

	var names, quoted []string
	for line := range strings.Lines(sample) {
		if name := strings.TrimSpace(line); name != "" && name[0] != '#' {
			names = append(names, name)
			quoted = append(quoted, regexp.QuoteMeta(name))
		}
	}
	results, output := run(t, c.Server, dir, "("+strings.Join(quoted, "|")+")")
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			r, ran := results[name]
			switch {
			case !ran:
				t.Error("it was not run: is its name in upstream's suite?")
			case r.Status != "passed":
				t.Errorf("%s\n%s%s\n%s", r.Status, r.Failure.Text, r.Error.Text, r.Output)
			}
		})
	}
	if len(results) != len(names) {
		t.Errorf("%d tests were run, not %d", len(results), len(names))
	}
	if t.Failed() {
		t.Logf("ginkgo:\n%s", output)
	}
}

// result is a test case of ginkgo's report in JUnit's format.
type result struct {
	Name    string `xml:"name,attr"`
	Status  string `xml:"status,attr"`
	Failure struct {
		Text string `xml:",chardata"`
	} `xml:"failure"`
	Error struct {
		Text string `xml:",chardata"`
	} `xml:"error"`
	Output string `xml:"system-err"`
}

// run runs the tests that match from the server's sandbox and returns how each ended, and the last of what ginkgo
// printed.
func run(t *testing.T, s *harness.Server, suite, focus string) (map[string]result, string) {
	t.Helper()
	out := t.TempDir()
	kubectl := filepath.Join(out, "kubectl") // kubelith called by this name is kubectl
	if err := os.Symlink(s.BinaryPath(), kubectl); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	cmd := s.Command(filepath.Join(suite, "ginkgo"), "run", "--procs=4", "--no-color", "--timeout=22m", "--silence-skips", "--focus="+focus,
		"--output-dir="+out, "--junit-report=junit.xml", filepath.Join(suite, "e2e.test"), "--",
		"--kubeconfig="+harness.AdminKubeconfig, "--kubectl-path="+kubectl, "--provider=skeleton", "--disable-log-dump", "--prepull-images=false",
		"--node-schedulable-timeout=3m", "--system-pods-startup-timeout=3m", "--e2e-output-dir="+out)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	context.AfterFunc(ctx, func() {
		if cmd.Process != nil {
			unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
	})
	text, runErr := cmd.CombinedOutput() // that tests failed is in the report
	output := string(text[max(0, len(text)-20_000):])
	report, err := os.ReadFile(filepath.Join(out, "junit.xml"))
	if err != nil {
		t.Fatalf("ginkgo wrote no report: %v, %v\n%s", runErr, err, output)
	}
	var suites struct {
		Cases []result `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(report, &suites); err != nil {
		t.Fatal(fmt.Errorf("ginkgo's report: %w", err))
	}
	results := map[string]result{}
	for _, c := range suites.Cases {
		// "[It] NAME [sig-node, Conformance]"; what is not of a test is named "[SynchronizedBeforeSuite]".
		name, isTest := strings.CutPrefix(c.Name, "[It] ")
		switch labels := strings.LastIndex(name, " [sig-"); {
		case !isTest && c.Status == "failed":
			t.Errorf("%s failed\n%s", c.Name, c.Failure.Text)
		case isTest && c.Status != "skipped":
			results[name[:max(labels, 0)]] = c
		}
	}
	return results, output
}
