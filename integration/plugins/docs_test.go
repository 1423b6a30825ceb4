package plugins

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// TestDocumentation does what docs/plugins.md tells who wants to write a plugin: a module of its own, built, checked, put into
// the directory, and asked.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/plugins.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\n```go\n")
	source, rest, found := strings.Cut(after, "\n```\n")
	if !found {
		t.Fatal("docs/plugins.md has no Go program")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(rest, "\n") { // what to type to build it
		line = strings.TrimPrefix(line, "    ")
		if !strings.HasPrefix(line, "go mod ") {
			continue
		}
		cmd := exec.Command("sh", "-ec", strings.ReplaceAll(line, "/path/to/kubelith", root))
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	team := filepath.Join(dir, "team")

	s := harness.Start(t, harness.Options{NoTestImage: true})
	const checked = harness.DataDir + "/team"
	install(t, s, team, checked)
	res := s.RunBinary(t, "plugin", "check", checked)
	if res.Code != 0 || strings.Count(res.Stdout, "\nok ") < 10 || strings.Contains(res.Stdout, "failed") {
		t.Errorf("plugin check: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	install(t, s, team, dropped("team"))
	waitPhase(t, s, "team", "ready")
	refused := s.TryKubectl(t, "run", "web", "--image=kubelith/hello:1")
	if refused.Code == 0 || !strings.Contains(rest, "    "+strings.TrimSpace(refused.Stderr)+"\n") {
		t.Errorf("a pod without the label: exit code %d, and not as documented: %s", refused.Code, refused.Stderr)
	}
	s.Kubectl(t, "run", "web", "--image=kubelith/hello:1", "--labels=team=a")
}

// TestCheckStorage: what `kubelith plugin check` says of the storage plugin that comes with Kubelith, csi-sanity included.
func TestCheckStorage(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoTestImage: true})
	res := s.RunBinary(t, "plugin", "check", harness.DataDir+"/data/current/bin/kubelith-local")
	if res.Code != 0 || !strings.Contains(res.Stdout, "ok       csi-sanity of kubernetes-csi: ") || !strings.Contains(res.Stdout, " tests passed") {
		t.Errorf("plugin check: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
}
