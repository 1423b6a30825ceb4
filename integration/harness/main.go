package harness

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"kubelith.io/kubelith/host/sandbox"
)

// Shared is one server for all tests of a package. It starts when the first test asks for it.
type Shared struct {
	opts   Options
	once   sync.Once
	server *Server
	err    error
}

// DetectMutations makes a server panic when one of its components changes an object of a shared cache. It compares all
// of them each second, so servers that do what others do run without it. An element of Options.Env.
const DetectMutations = "KUBE_CACHE_MUTATION_DETECTOR=true"

// NewShared describes the server, which has DetectMutations; nothing starts yet.
func NewShared(opts Options) *Shared {
	opts.Env = append([]string{DetectMutations}, opts.Env...)
	return &Shared{opts: opts}
}

// Get returns the running server. It skips the test when the host cannot run it, and fails it when the server could not
// start or has died since.
func (sh *Shared) Get(t testing.TB) *Server {
	t.Helper()
	Require(t)
	sh.once.Do(func() { sh.server, sh.err = startServer(sh.opts) })
	if sh.err != nil {
		t.Fatalf("shared server: %v", sh.err)
	}
	if err := sh.server.diedUnasked(); err != nil {
		t.Fatalf("shared server: %v", err)
	}
	return sh.server
}

// Main runs the tests of a package and exits. TestMain must call it: the sandbox's holder process is this test binary
// again, recognised here.
func Main(m *testing.M, shared ...*Shared) {
	if os.Getenv(sandbox.HolderEnv) != "" {
		if err := sandbox.Hold(); err != nil {
			fmt.Fprintf(os.Stderr, "harness: %v\n", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if missing() == "" {
		sandbox.Sweep()
	}
	if path, err := binary(); err == nil {
		os.Setenv("KUBELITH_BIN", path) // for kubelith.io/kubelith/cluster
	}
	if len(shared) > 0 {
		Parallel(8)
	} else {
		Parallel(4) // a server uses some of a core while its test waits
	}
	code := m.Run()
	for _, sh := range shared {
		if sh.server == nil {
			continue
		}
		if err := sh.server.finish(); err != nil {
			fmt.Fprintf(os.Stderr, "harness: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Step runs a part of a test that the parts after it depend on: if it fails, they do not run.
func Step(t *testing.T, name string, run func(*testing.T)) {
	t.Helper()
	if !t.Run(name, run) {
		t.FailNow()
	}
}

// Part is a part of a test that others run beside.
type Part struct {
	Name string
	Run  func(*testing.T)
}

// Together runs parts of a test, atOnce of them at a time, in this order. With t.Parallel they would queue behind the
// package's tests that have not begun, while their own servers idle.
func Together(t *testing.T, atOnce int, parts ...Part) {
	t.Helper()
	queue := make(chan Part, len(parts))
	for _, p := range parts {
		queue <- p
	}
	close(queue)
	var running sync.WaitGroup
	for range atOnce {
		running.Go(func() {
			for p := range queue {
				t.Run(p.Name, p.Run)
			}
		})
	}
	running.Wait()
}

// Parallel lets this many tests run at once, unless -parallel or an earlier call has set the number. It is more than
// there are CPUs: tests wait most of the time.
func Parallel(tests int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", strconv.Itoa(tests))
	}
}

// Require skips the test, or fails it under KUBELITH_REQUIRE_INTEGRATION=1, when the host cannot run it.
func Require(t testing.TB) {
	t.Helper()
	require(t, missing())
}

// RequireProgram is Require for a program that only some tests need.
func RequireProgram(t testing.TB, name string) {
	t.Helper()
	if !onPath(name) {
		require(t, "the program "+name+" is missing")
	}
}

func require(t testing.TB, why string) {
	t.Helper()
	if why == "" {
		return
	}
	if os.Getenv("KUBELITH_REQUIRE_INTEGRATION") == "1" {
		t.Fatalf("integration tests are required but cannot run: %s", why)
	}
	t.Skipf("integration tests cannot run: %s", why)
}

// missing returns what the host lacks, or "".
func missing() string {
	if os.Geteuid() != 0 {
		return "not root"
	}
	if _, err := binary(); err != nil {
		return err.Error()
	}
	for _, tool := range []string{"ip", "nsenter"} {
		if !onPath(tool) {
			return "the program " + tool + " is missing (iproute2, util-linux)"
		}
	}
	return ""
}

// binary returns the path of the executable under test.
func binary() (string, error) {
	path := os.Getenv("KUBELITH_BIN")
	if path == "" {
		root, err := repoRoot()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "kubelith")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return "", fmt.Errorf("%s does not exist: run make build, or set KUBELITH_BIN", path)
	}
	for _, hidden := range []string{"/run/", "/var/lib/", "/var/log/"} {
		if strings.HasPrefix(path, hidden) {
			return "", fmt.Errorf("%s: the sandbox hides %s, put the executable elsewhere", path, hidden)
		}
	}
	return path, nil
}

// repoRoot returns the directory of the test's module.
func repoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == "/" {
			return "", fmt.Errorf("no go.mod above %s", dir)
		}
	}
}

// Tool returns a program of the module tools that `make NAME` has built.
func Tool(t testing.TB, name string) string {
	t.Helper()
	root, err := repoRoot()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, ".cache/tools", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no %s: run make %[1]s", name)
	}
	return path
}

func onPath(tool string) bool {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, tool)); err == nil && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

// defects returns log lines that no server may write: a Go panic or race, or an object changed in a shared cache.
func defects(log string) []string {
	return defect.FindAllString(log, 5)
}

var defect = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE).*$|^.*(cache \S+ modified|Observed a panic|panic serving).*$`)
