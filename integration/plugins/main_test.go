// Package plugins tests plugins of all kinds on real servers: real executables, started by the server.
package plugins

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// building keeps tests from writing one executable at the same time.
var building sync.Mutex

// buildPlugin builds the program of a package, relative to this directory, and returns its path.
func buildPlugin(t *testing.T, pkg string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	program, err := filepath.Abs(filepath.Join("../../.cache/plugins", filepath.Base(pkg)))
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return program
}
