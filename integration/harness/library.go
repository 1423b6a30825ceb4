package harness

import (
	"os"
	"os/exec"
	"testing"

	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/cluster"
)

// Library is a cluster of kubelith.io/kubelith/cluster: without a sandbox, for tests that do not look into its server.
type Library struct {
	API
	*cluster.Cluster
}

// StartLibrary starts a cluster that ends with the test, and fails the test for defects in the server's log. A node has
// the test image.
func StartLibrary(t testing.TB, opts cluster.Options) *Library {
	t.Helper()
	Require(t)
	if opts.Node {
		archive, err := testImage()
		if err != nil {
			t.Fatal(err)
		}
		opts.Images = append(opts.Images, archive)
	}
	l := &Library{Cluster: cluster.Start(t, opts)}
	config := func() (*rest.Config, error) { return l.Config(), nil }
	kubectl := func(args ...string) *exec.Cmd {
		return Binary(append([]string{"kubectl", "--kubeconfig=" + l.Kubeconfig()}, args...)...)
	}
	l.API = API{config, kubectl, l.Logs}
	t.Cleanup(func() {
		for _, line := range defects(l.Logs()) {
			t.Errorf("the server's log has: %s", line)
		}
	})
	return l
}

// Logs returns what the server has logged so far.
func (l *Library) Logs() string {
	content, _ := os.ReadFile(l.LogFile())
	return string(content)
}

// Binary returns a command for kubelith, outside of any sandbox.
func Binary(args ...string) *exec.Cmd { return exec.Command(os.Getenv("KUBELITH_BIN"), args...) }
