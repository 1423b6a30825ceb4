// Package upgrade tests `kubelith upgrade` on a service, as docs/upgrade.md describes it.
package upgrade

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"aead.dev/minisign"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "rc-service" {
		os.Exit(rcService(os.Args[1:]))
	}
	harness.Main(m)
}

// from is an older program to begin with: `make upgrade-test` builds one from the repository's history. It may not know
// the command, which the new one runs then.
const from = "KUBELITH_UPGRADE_FROM"

// variant writes a copy of the installed program that calls itself another version of Kubernetes. Both versions have
// the same length.
func (m *manager) variant(t *testing.T, name, was, is string) string {
	t.Helper()
	content, err := os.ReadFile(m.s.Path(installed))
	if err != nil {
		t.Fatal(err)
	}
	if len(was) != len(is) || !bytes.Contains(content, []byte(was)) {
		t.Fatalf("no variant %s of %s", is, was)
	}
	path := m.path(name)
	if err := os.WriteFile(m.s.Path(path), bytes.ReplaceAll(content, []byte(was), []byte(is)), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// successor returns a version for a variant that comes after this one: v1.37.1+kubelith, v1.37.1+kubelitH,
// v1.37.1+kubeliTH.
func successor(version string) string {
	i := strings.LastIndexFunc(version, unicode.IsLower)
	return version[:i] + strings.ToUpper(version[i:i+1]) + version[i+1:]
}

// spoils writes the program of testdata/spoils.go.txt, which reports the versions of the installed one.
func (m *manager) spoils(t *testing.T) string {
	t.Helper()
	program := buildSpoils(t, m.version(t, "kubernetes"), m.version(t, "etcd"))
	path := m.path("spoils")
	if err := os.WriteFile(m.s.Path(path), program, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// builtSpoils is what buildSpoils has built, by linker flags.
var builtSpoils = struct {
	sync.Mutex
	programs map[string][]byte
}{programs: map[string][]byte{}}

// buildSpoils builds the program of testdata/spoils.go.txt as an executable of Kubelith, once for the same versions.
func buildSpoils(t *testing.T, kubernetes, etcd string) []byte {
	t.Helper()
	builtSpoils.Lock()
	defer builtSpoils.Unlock()
	flags := fmt.Sprintf("-X main.kubernetes=%s -X main.etcd=%s", kubernetes, etcd)
	if program := builtSpoils.programs[flags]; program != nil {
		return program
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "main.go"): filepath.Join(root, "integration/upgrade/testdata/spoils.go.txt")}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, path := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "spoils")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-overlay", file, "-ldflags", flags, "-o", path, ".")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	builtSpoils.programs[flags] = program
	return program
}

// sign writes a public key and a signature of a file of the sandbox.
func (m *manager) sign(t *testing.T, file string) (key, signature string) {
	t.Helper()
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := public.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(m.s.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read := minisign.NewReader(f)
	if _, err := bytes.NewBuffer(nil).ReadFrom(read); err != nil {
		t.Fatal(err)
	}
	key, signature = m.path("release.pub"), m.path("file.minisig")
	for path, content := range map[string][]byte{key: text, signature: read.Sign(private)} {
		if err := os.WriteFile(m.s.Path(path), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key, signature
}

// TestServer: what may not be installed is refused; a program that changes the data and then fails is taken back with
// the data; an upgrade that is killed while the new program starts is finished by the same command; and no pod notices
// any of it.
func TestServer(t *testing.T) {
	s := harness.New(t, harness.Options{Args: []string{"--apiserver-arg=runtime-config=resource.k8s.io/v1beta1=true"}})
	m := install(t, s, s.BinaryPath())
	m.do("start")
	s.WaitReady(t)
	ns := s.Namespace(t)
	pod := s.Run(t, harness.Pod(ns, "a", "sleep", "100000"))
	container := s.ContainerPID(t, pod, "main")
	kubernetes := m.version(t, "kubernetes") // v1.37.1+kubelith
	next := successor(kubernetes)
	good := m.variant(t, "next", kubernetes, next)
	key, signature := m.sign(t, good)

	minor, err := strconv.Atoi(strings.Split(kubernetes, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	later := func(n int) string {
		is := strings.Replace(kubernetes, fmt.Sprintf("v1.%d.", minor), fmt.Sprintf("v1.%d.", minor+n), 1)
		return m.variant(t, fmt.Sprintf("minor%+d", n), kubernetes, is)
	}
	s.Exec(t, "cp", "/bin/true", m.path("true"))
	s.Kubectl(t, "create", "--raw=/apis/resource.k8s.io/v1beta1/deviceclasses", "-f", deviceClass(t, s))
	before := m.pid()
	for _, c := range []struct {
		want string
		args []string
	}{
		{"is not an executable of Kubelith", []string{m.path("true")}},
		{"no such file", []string{m.path("none")}},
		{"is not the file that was published: its sha256 is ", []string{good, "--sha256", strings.Repeat("0", 64)}},
		{"the signature " + signature + " does not match", []string{m.path("minor-1"), "--sig", signature, "--key", key}},
		{"the public key of minisign: open /etc/kubelith/release.pub: no such file", []string{good, "--sig", signature}},
		{"Kubernetes would go back from " + kubernetes, []string{later(-1)}},
		{"upgrade to the next minor release first", []string{later(+2)}},
		{"deviceclasses of resource.k8s.io/v1beta1 was requested; objects (1, such as test) were written as deviceclasses of resource.k8s.io/v1beta1: change what uses them, or give --allow-removed-apis", []string{later(+1)}},
		{"upgrade takes one file", []string{good, "other"}},
	} {
		if ok, _, last := m.upgrade(t, c.args...); ok || !strings.HasPrefix(last, "kubelith: ") || !strings.Contains(last, c.want) {
			t.Errorf("kubelith upgrade %q ends with %s, want %q", c.args, last, c.want)
		}
	}
	unchanged := func(what string) {
		t.Helper()
		if got := s.ContainerPID(t, pod, "main"); got != container {
			t.Errorf("%s: the container is process %d, was %d", what, got, container)
		}
		if left, _ := filepath.Glob(s.Path(installed) + ".new"); len(left) > 0 || exists(s, harness.DataDir+"/upgrade") {
			t.Errorf("%s: the upgrade has left something: %q", what, left)
		}
	}
	if t.Failed() {
		t.Log(s.Kubectl(t, "get", "deviceclasses", "-o", "yaml", "--show-managed-fields"))
	}
	unchanged("refused upgrades")
	if m.pid() != before {
		t.Error("a refused upgrade restarted the service")
	}

	s.Kubectl(t, "create", "configmap", "kept")
	cs := s.Client(t)
	kept, err := cs.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ok, said, last := m.upgrade(t, m.spoils(t), "--within", "3m")
	if ok || !endedOften(last, "runs again with its data", "spoilt on purpose") || !strings.Contains(said, "is not verified: give --sha256 or --sig") {
		t.Errorf("a program that fails: %s", last)
	}
	if !exists(s, "/run/spoilt") {
		t.Error("the program has not changed the data before it failed: nothing is tested")
	}
	if got := m.version(t, "kubernetes"); got != kubernetes || exists(s, installed+".previous") {
		t.Errorf("the program is of %s, and before it was of %s", got, kubernetes)
	}
	if names := s.Kubectl(t, "get", "configmaps", "-o", "name"); !strings.Contains(names, "configmap/kept") || strings.Contains(names, "configmap/spoilt") {
		t.Errorf("the configmaps are %q", names)
	}
	list, err := cs.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now, then := number(t, list.ResourceVersion), number(t, kept.ResourceVersion); now < then+1e9 {
		t.Errorf("resource versions go on at %d after %d: those that the failed program has given out are given out again", now, then)
	}
	unchanged("a failed upgrade")

	args := []string{good, "--sig", signature, "--key", key}
	killed, was := m.command(args...), m.pid()
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 2*time.Minute, "the new program to be started", func() error {
		if text, err := os.ReadFile(s.Path(harness.DataDir + "/upgrade/state.json")); err != nil || !strings.Contains(string(text), `"trying"`) {
			return fmt.Errorf("state %s, %v", text, err)
		}
		if pid := m.pid(); pid == 0 || pid == was {
			return errors.New("it is not")
		}
		return nil
	})
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	if ok, said, _ := m.upgrade(t, args...); !ok || !strings.Contains(said, "was interrupted: resuming it") {
		t.Errorf("an upgrade that goes on printed\n%s", said)
	}
	if got := m.version(t, "kubernetes"); got != next {
		t.Errorf("the program is of %s", got)
	}
	if got := versionOf(t, s, installed+".previous", "kubernetes"); got != kubernetes {
		t.Errorf("the former program is of %s", got)
	}
	if got := s.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.kubeletVersion}"); got != next {
		t.Errorf("the node reports %s", got)
	}
	if snapshots := s.Exec(t, "ls", harness.DataDir+"/server/snapshots"); strings.Count(snapshots, "upgrade-") != 2 {
		t.Errorf("the snapshots are\n%s", snapshots)
	}
	unchanged("an upgrade")
	if ok, said, _ := m.upgrade(t, args...); !ok || !strings.Contains(said, "nothing to do") {
		t.Errorf("the same upgrade again printed\n%s", said)
	}
}

func exists(s *harness.Server, path string) bool {
	_, err := os.Lstat(s.Path(path))
	return err == nil
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// deviceClass writes an object of an API that Kubernetes 1.38 does not have.
func deviceClass(t *testing.T, s *harness.Server) string {
	t.Helper()
	const path = "/run/deviceclass.json"
	const object = `{"apiVersion": "resource.k8s.io/v1beta1", "kind": "DeviceClass", "metadata": {"name": "test", "labels": {"a": "b"}}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}`
	if err := os.WriteFile(s.Path(path), []byte(object), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFrom upgrades from an older build, with the new program, which is the one that knows how.
func TestFrom(t *testing.T) {
	older := os.Getenv(from)
	if older == "" {
		t.Skip(from + " names no older program: make upgrade-test builds one")
	}
	s := harness.New(t, harness.Options{})
	m := install(t, s, older)
	m.do("start")
	s.WaitReady(t)
	ns := s.Namespace(t)
	pod := s.Run(t, harness.Pod(ns, "a", "sleep", "100000"))
	container := s.ContainerPID(t, pod, "main")
	s.Kubectl(t, "create", "configmap", "kept")
	upgrade := func(file string) (string, error) {
		out, err := s.Command("env", "PATH="+tools+":"+os.Getenv("PATH"), s.BinaryPath(), "upgrade", file, "--within", "3m").CombinedOutput()
		t.Logf("upgrade %s:\n%s", file, out)
		return string(out), err
	}
	release := m.version(t, "kubelith")
	var exit *exec.ExitError
	if out, err := upgrade(m.spoils(t)); !errors.As(err, &exit) || !endedOften(out, "runs again with its data", "spoilt on purpose") {
		t.Errorf("a program that fails: %v\n%s", err, out)
	}
	if names := s.Kubectl(t, "get", "configmaps", "-o", "name"); !strings.Contains(names, "configmap/kept") || strings.Contains(names, "configmap/spoilt") {
		t.Errorf("the configmaps are %q", names)
	}
	if got := m.version(t, "kubelith"); got != release {
		t.Errorf("the program is %s, was %s", got, release)
	}
	if out, err := upgrade(s.BinaryPath()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := m.version(t, "kubelith"); got == release {
		t.Errorf("the program is still %s", got)
	}
	if names := s.Kubectl(t, "get", "configmaps", "-o", "name"); !strings.Contains(names, "configmap/kept") {
		t.Errorf("the configmaps are %q", names)
	}
	if got := s.ContainerPID(t, pod, "main"); got != container {
		t.Errorf("the container is process %d, was %d", got, container)
	}
}

// endedOften reports whether an upgrade was given up since the new program had ended too often: five times, or more if
// it ended again between two looks.
func endedOften(text, after, why string) bool {
	return regexp.MustCompile(regexp.QuoteMeta(after) + ": it ended ([5-9]|[1-9][0-9]+) times: " + regexp.QuoteMeta(why)).MatchString(text)
}
