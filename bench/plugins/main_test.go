package plugins

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/host"
)

// TestMain: servers run in the harness's sandboxes.
func TestMain(m *testing.M) { harness.Main(m) }

// build builds a program of this directory, and returns its path.
func build(t testing.TB, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-o", program, "./"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the %s: %v\n%s", name, err, out)
	}
	return program
}

// startPlugins runs plugins under a host, as a server does.
func startPlugins(t testing.TB, specs ...host.Spec) *host.Host {
	t.Helper()
	log := logrus.New()
	log.SetLevel(logrus.WarnLevel)
	dir := t.TempDir()
	h := host.New(host.Options{
		Specs: specs, DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), NodeName: "node",
		Log: logrus.NewEntry(log),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- h.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-ready
	for _, state := range h.States() {
		if state.Phase != string(host.Ready) {
			t.Fatalf("plugin %s is %s: %s", state.Name, state.Phase, state.Message)
		}
	}
	return h
}
