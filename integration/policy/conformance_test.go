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

// TestClusterPolicyConformance has a subtest for each conformance test of ClusterNetworkPolicies, with pods whose first
// address is of either family. Images of pods are our own, since the kernel may have no SCTP. It takes 13 minutes: make
// policy-conformance.
func TestClusterPolicyConformance(t *testing.T) {
	if os.Getenv("KUBELITH_POLICY_CONFORMANCE") == "" {
		t.Skip("make policy-conformance runs it")
	}
	program := filepath.Join(t.TempDir(), "suite.test")
	inModule(t, "suite", "test", "-c", "-o", program, ".")
	t.Run("IPv4", func(t *testing.T) { clusterPolicyConformance(t, program, false) })
	t.Run("IPv6", func(t *testing.T) {
		clusterPolicyConformance(t, program, true, "--cluster-cidr=fd42::/56,10.42.0.0/16", "--service-cidr=fd43::/112,10.43.0.0/16")
	})
}

func clusterPolicyConformance(t *testing.T, program string, ipv6 bool, args ...string) {
	server := harness.Options{Prepare: agnhost(t, "registry.k8s.io/e2e-test-images/agnhost:2.45"), IPv6: ipv6, Args: args}
	agent := server
	agent.Args = nil
	c := harness.StartCluster(t, harness.ClusterOptions{Server: server, Agent: agent, Agents: 1}) // each node has one of the suite's servers on ports of the host
	define(t, c.Nodes()...)

	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Minute)
	defer cancel()
	cmd := asAdministrator(ctx, t, c.Server, program, "-test.v", "-test.timeout=13m")
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

// asAdministrator returns a command on a server that ends with ctx.
func asAdministrator(ctx context.Context, t *testing.T, s *harness.Server, program string, args ...string) *exec.Cmd {
	cmd := s.Command(program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+harness.AdminKubeconfig)
	stop := context.AfterFunc(ctx, func() {
		if cmd.Process != nil {
			cmd.Process.Kill()
		}
	})
	t.Cleanup(func() { stop() })
	return cmd
}

// inModule runs the go command in a separate module.
func inModule(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // make's are for another module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
}

// agnhost returns what gives a node the image ref of our program agnhost. No registry is asked.
func agnhost(t *testing.T, ref string) func(*harness.Server) error {
	t.Helper()
	program, err := os.ReadFile(harness.BuildProgram(t, "./agnhost"))
	if err != nil {
		t.Fatal(err)
	}
	layer := testimage.NewLayer()
	layer.File("agnhost", 0o755, program)
	layer.Link("bin/bash", "/agnhost")
	layer.Link("worker", "/agnhost")
	content, err := layer.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	images := filepath.Join(t.TempDir(), "images.tar")
	config := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, WorkingDir: "/"}
	if err := testimage.Write(images, content, testimage.Image{Name: ref, Config: config}); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(images)
	if err != nil {
		t.Fatal(err)
	}
	return func(s *harness.Server) error {
		path := s.Path(harness.DataDir + "/agent/images/agnhost.tar")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		return os.WriteFile(path, archive, 0o600)
	}
}

// ended is the last line about a test of the suite.
var ended = regexp.MustCompile(`^    --- (PASS|FAIL|SKIP): TestConformance/(\w+) `)
