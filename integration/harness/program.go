package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"

	"kubelith.io/kubelith/integration/lockfile"
)

// programs are the executables that this process has built, by their paths.
var programs = struct {
	sync.Mutex
	built map[string]bool
}{built: map[string]bool{}}

// BuildProgram builds the program of a package, given relative to the test's directory, which is two levels below the
// repository's root, and returns its path.
func BuildProgram(t testing.TB, pkg string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs(pkg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, ".cache/plugins", strings.TrimPrefix(source, root), filepath.Base(source))
	if programs.built[path] {
		return path
	}
	// go build leaves a program alone that another process has built.
	unlock, err := lockfile.Lock(filepath.Join(root, ".cache/plugins/lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	programs.built[path] = true
	return path
}

// OtherRelease returns an executable like the one under test whose minor version of Kubernetes is that much higher.
func (s *Server) OtherRelease(t testing.TB, by int) string {
	t.Helper()
	info, err := s.Client(t).Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	is, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(info.GitVersion, fmt.Sprintf("v%d.%d.", is.Major(), is.Minor()), fmt.Sprintf("v%d.%d.", is.Major(), int(is.Minor())+by), 1)
	if len(other) != len(info.GitVersion) {
		t.Fatalf("the versions %s and %s have not the same length", info.GitVersion, other)
	}
	program, err := os.ReadFile(s.BinaryPath())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubelith")
	if err := os.WriteFile(path, bytes.ReplaceAll(program, []byte(info.GitVersion), []byte(other)), 0o755); err != nil {
		t.Fatal(err)
	}
	if res := s.TryExec(t, path, "version"); !strings.Contains(res.Stdout, other) {
		t.Fatalf("not %s: %s%s", other, res.Stdout, res.Stderr)
	}
	return path
}
