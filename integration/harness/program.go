package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// building keeps tests from writing one executable at the same time.
var building sync.Mutex

// BuildProgram builds the program of a package, given relative to the test's directory, which is two levels below the
// repository's root, and returns its path.
func BuildProgram(t testing.TB, pkg string) string {
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
