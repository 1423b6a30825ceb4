package cluster

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDependencies: a test binary that imports the package does not link Kubernetes, nor anything else of Kubelith.
func TestDependencies(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{end}}{{.ImportPath}}", ".")
	list.Env = append(os.Environ(), "GOFLAGS=") // make's name another module's go.mod
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, out)
	}
	allowed := []string{"k8s.io/client-go", "k8s.io/apimachinery", "k8s.io/klog/v2", "k8s.io/utils", "k8s.io/kube-openapi", "kubelith.io/kubelith/cluster"}
	var linked []string
	for line := range strings.Lines(string(out)) {
		module, _, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok { // the standard library
			continue
		}
		linked = append(linked, module)
		for _, domain := range []string{"k8s.io/", "kubelith.io/", "go.etcd.io/", "github.com/containerd/", "github.com/coredns/", "google.golang.org/grpc"} {
			if strings.HasPrefix(module, domain) && !slices.Contains(allowed, module) {
				t.Errorf("it links %s", strings.TrimSpace(line))
			}
		}
	}
	if !slices.Contains(linked, "k8s.io/client-go") {
		t.Errorf("the list is not one of dependencies: %s", out)
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		opts Options
		want string // in the error; empty: none
	}{
		{Options{}, ""},
		{Options{Args: []string{"--apiserver-arg=event-ttl=1m", "--disable", "scheduler", "--config=/c.yaml"}}, ""},
		{Options{Args: []string{"--data-dir=/d"}}, "--data-dir, which the library sets itself"},
		{Options{Args: []string{"-https-port", "1"}}, "--https-port"},
		{Options{Images: []string{"a.tar"}}, "needs Options.Node"},
		{Options{Images: []string{"a.tar"}, Node: true}, ""},
	} {
		err := c.opts.check()
		if got := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %v, want %q", c.opts, err, c.want)
		}
	}
}

func TestServerArgs(t *testing.T) {
	c := &Cluster{dir: &directory{base: "/tmp/kubelith-1"}, addr: address{"127.1.2.3", "6443"}, opts: Options{Args: []string{"--disable=scheduler"}}}
	got := strings.Join(c.serverArgs(), " ")
	for _, want := range []string{"server --stop-with-stdin", "--bind-address=127.1.2.3 --https-port=6443", "--config= ", "--data-dir=/tmp/kubelith-1/data",
		"--run-dir=/tmp/kubelith-1/run", "--disable=containerd,kubelet,", "--write-kubeconfig=/tmp/kubelith-1/kubeconfig", " --disable=scheduler"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %q", got, want)
		}
	}
	c.opts.Args = []string{"--config", "/c.yaml"}
	if got := strings.Join(c.serverArgs(), " "); strings.Contains(got, "--config=") || !strings.Contains(got, "--config /c.yaml") {
		t.Errorf("with a file of the user: %s", got)
	}
}

func TestValues(t *testing.T) {
	args := []string{"--disable=a,b", "--x", "--disable", "c", "-disable=d", "--disabled=e"}
	if got := values(args, "disable"); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Errorf("%v has the values %v", args, got)
	}
}

func TestExecutable(t *testing.T) {
	dir := t.TempDir()
	program := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	option, variable, onPath, text := program("option", 0o755), program("variable", 0o755), program("bin/kubelith", 0o755), program("text", 0o644)
	t.Chdir(dir)
	for _, c := range []struct{ option, variable, path, want, err string }{
		{option, variable, "bin", option, ""},
		{"", variable, "bin", variable, ""},
		{"", "variable", "bin", variable, ""},
		{"", "", filepath.Dir(onPath), onPath, ""},
		{"", "", "/nowhere", "", "kubelith is not in PATH: put it there, or set KUBELITH_BIN to its path"},
		{"missing", variable, "bin", "", `Options.Executable is "missing", which is not an executable (no such file or directory): give the absolute path of kubelith`},
		{"", text, "bin", "", "KUBELITH_BIN is \"" + text + "\", which is not an executable (permission denied)"},
	} {
		t.Setenv("KUBELITH_BIN", c.variable)
		t.Setenv("PATH", c.path)
		got, err := executable(c.option)
		if text := fmt.Sprint(err); got != c.want || (err == nil) != (c.err == "") || !strings.Contains(text, c.err) || strings.Contains(text, "\n") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestVisible(t *testing.T) {
	if err := visible("/usr/local/bin/kubelith"); err != nil {
		t.Error(err)
	}
	if err := visible("/var/lib/ci/kubelith"); err == nil || !strings.Contains(err.Error(), "put kubelith elsewhere") {
		t.Errorf("a program that the sandbox hides: %v", err)
	}
}

// TestFreeAddress: two clusters do not get the same address, and not the port of a program that listens on all of them.
func TestFreeAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	seen := map[address]bool{}
	for range 100 {
		a, err := freeAddress()
		if err != nil {
			t.Fatal(err)
		}
		ip := net.ParseIP(a.ip)
		if seen[a] || !ip.IsLoopback() || ip.Equal(net.IPv4(127, 0, 0, 1)) {
			t.Errorf("the address %v", a)
		}
		seen[a] = true
		l, err := net.Listen("tcp", net.JoinHostPort(a.ip, a.port))
		if err != nil {
			t.Errorf("%v is not free: %v", a, err)
			continue
		}
		l.Close()
	}
}

// TestDirectory: it is short enough for sockets whatever TMPDIR is; one whose processes have ended is removed by the
// next one, and nothing else is.
func TestDirectory(t *testing.T) {
	t.Setenv("KUBELITH_TEST_LOGS", "")
	t.Setenv("TMPDIR", t.TempDir()) // long
	d, err := newDirectory("a")
	if err != nil {
		t.Fatal(err)
	}
	if run := d.path("run"); len(run) > 29 {
		t.Errorf("%s has %d bytes", run, len(run))
	}
	if err := d.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.base); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", d.base, err)
	}

	parent := t.TempDir()
	make := func(name, file string) string {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	left, used, data, other := make(prefix+"1", lockName), make(prefix+"2", lockName), make(prefix+"data", "lock"), make("other", lockName)
	lock, err := tryLock(used, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	sweep(parent)
	for dir, want := range map[string]bool{left: false, used: true, data: true, other: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("after a sweep %s: %v", filepath.Base(dir), err)
		}
	}
}

func TestLogFile(t *testing.T) {
	logs := filepath.Join(t.TempDir(), "logs")
	t.Setenv("KUBELITH_TEST_LOGS", logs)
	d, err := newDirectory("TestA/with b")
	if err != nil {
		t.Fatal(err)
	}
	defer d.remove()
	if filepath.Dir(d.log) != logs || !strings.HasPrefix(filepath.Base(d.log), "TestA-with-b-") {
		t.Errorf("the log is %s", d.log)
	}
}

// TestProcess stops a process by its standard input, and reports one that ended before.
func TestProcess(t *testing.T) {
	d, err := newDirectory("a")
	if err != nil {
		t.Fatal(err)
	}
	defer d.remove()
	start := func(script string) *process {
		p, err := startProcess(exec.Command("sh", "-c", script), d.log, d.lock)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start("echo started; cat >/dev/null; echo stopped")
	if err := p.end(); err != nil || p.running() {
		t.Errorf("stop: %v, it runs: %t", err, p.running())
	}
	if err := p.end(); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if got := lastLines(d.log, 1); got != "stopped" {
		t.Errorf("the log ends with %q", got)
	}
	p = start("cat >/dev/null; exit 3")
	if err := p.stop(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a stop that failed: %v", err)
	}
	p = start("exit 4")
	<-p.exited
	if err := p.end(); err == nil || !strings.Contains(err.Error(), "unexpectedly (exit status 4)") {
		t.Errorf("an unexpected end: %v", err)
	}
	if err := (*process)(nil).end(); err != nil {
		t.Errorf("never started: %v", err)
	}
}

// TestNotices waits for what a server reports, and for no longer than it lives.
func TestNotices(t *testing.T) {
	d, err := newDirectory("a")
	if err != nil {
		t.Fatal(err)
	}
	defer d.remove()
	listen := func() *notices {
		n, err := listenNotices(d.path("notify"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	say := func(n *notices, text string) {
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	server, err := startProcess(exec.Command("cat"), d.log, d.lock)
	if err != nil {
		t.Fatal(err)
	}
	n := listen()
	say(n, "STATUS=starting: apiserver")
	if err := n.wait(time.Now(), server); err == nil || !strings.Contains(err.Error(), "not ready within Options.StartTimeout") {
		t.Errorf("a slow start: %v", err)
	}
	say(n, "STATUS=starting: apiserver")
	say(n, "READY=1\nSTATUS=ready; still starting: scheduler")
	say(n, "STATUS="+allReady)
	if err := n.wait(time.Now().Add(time.Minute), server); err != nil {
		t.Error(err)
	}
	server.stop()
	n = listen()
	server, err = startProcess(exec.Command("sh", "-c", "echo kubelith: no; exit 1"), d.log, d.lock)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.wait(time.Now().Add(time.Minute), server); err == nil || err.Error() != "the server ended (exit status 1): kubelith: no" {
		t.Errorf("a refused start: %v", err)
	}
}

func TestNodeReady(t *testing.T) {
	for _, c := range []struct{ nodes, want string }{
		{`[]`, "there is no node yet"},
		{`[{}]`, "there is no node yet"},
		{`[{"status": {"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "False", "message": "no network"}]}}]`, "the node is not Ready: no network"},
		{`[{"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": {"taints": [{"key": "node.kubernetes.io/not-ready"}]}}]`, "the node has the taint node.kubernetes.io/not-ready"},
		{`[{"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": {"taints": [{"key": "mine"}]}}]`, ""},
	} {
		var l nodeList
		if err := json.Unmarshal([]byte(`{"items": `+c.nodes+`}`), &l); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := l.ready(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.nodes, got, c.want)
		}
	}
}
