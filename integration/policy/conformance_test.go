package policy

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/integration/testimage"
)

// TestClusterPolicyConformance has a subtest for each conformance test of ClusterNetworkPolicies. Images of pods are our own, since
// the kernel may have no SCTP. It takes 6 minutes: make policy-conformance.
func TestClusterPolicyConformance(t *testing.T) {
	if os.Getenv("KUBELITH_POLICY_CONFORMANCE") == "" {
		t.Skip("make policy-conformance runs it")
	}
	dir := t.TempDir()
	suite := filepath.Join(dir, "suite.test")
	build := exec.Command("go", "test", "-c", "-o", suite, ".")
	build.Dir = "suite"
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // make's are for another module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the suite: %v\n%s", err, out)
	}
	program, err := os.ReadFile(harness.BuildProgram(t, "./agnhost"))
	if err != nil {
		t.Fatal(err)
	}
	layer := testimage.NewLayer()
	layer.File("agnhost", 0o755, program)
	layer.Link("bin/bash", "/agnhost")
	content, err := layer.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	images := filepath.Join(dir, "images.tar")
	config := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, WorkingDir: "/"}
	if err := testimage.Write(images, content, testimage.Image{Name: "registry.k8s.io/e2e-test-images/agnhost:2.45", Config: config}); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(images)
	if err != nil {
		t.Fatal(err)
	}
	node := harness.Options{Prepare: func(s *harness.Server) error {
		path := s.Path(harness.DataDir + "/agent/images/agnhost.tar")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		return os.WriteFile(path, archive, 0o600)
	}}
	c := harness.StartCluster(t, harness.ClusterOptions{Server: node, Agent: node, Agents: 1}) // each node has one of the servers on ports of the host
	define(t, c.Nodes()...)

	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Minute)
	defer cancel()
	cmd := c.Server.Command(suite, "-test.v", "-test.timeout=13m")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+harness.AdminKubeconfig)
	stop := context.AfterFunc(ctx, func() {
		if cmd.Process != nil {
			cmd.Process.Kill()
		}
	})
	defer stop()
	output, runErr := cmd.CombinedOutput()
	results := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(string(output)))
	for lines.Scan() {
		if m := ended.FindStringSubmatch(lines.Text()); m != nil {
			results[m[2]] = m[1]
		}
	}
	for name, result := range results {
		t.Run(name, func(t *testing.T) {
			if result != "PASS" {
				t.Error(result)
			}
		})
	}
	const all = 24
	if len(results) != all || runErr != nil {
		t.Errorf("%d tests were run, not %d: %v", len(results), all, runErr)
	}
	if t.Failed() {
		t.Logf("the suite's output:\n%s", output)
	}
}

// ended is the last line about a test of the suite.
var ended = regexp.MustCompile(`^    --- (PASS|FAIL|SKIP): TestConformance/(\w+) `)
