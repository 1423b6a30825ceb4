package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs are the executables that this process has built, by package.
var programs = struct {
	sync.Mutex
	paths map[string]string
}{paths: map[string]string{}}

// BuildProgram builds the program of a package, given relative to the test's directory, which is two levels below the
// repository's root, and returns its path.
func BuildProgram(t testing.TB, pkg string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if path, ok := programs.paths[pkg]; ok {
		return path
	}
	path, err := filepath.Abs(filepath.Join("../../.cache/plugins", filepath.Base(pkg)))
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	programs.paths[pkg] = path
	return path
}
