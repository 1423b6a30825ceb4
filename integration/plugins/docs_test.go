package plugins

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/pluginadmin"
)

// TestDocumentation follows docs/plugins.md as a plugin's author does: creates a module, builds and checks it, puts the
// plugin into the directory, and sends it requests. The storage plugin that comes with Kubelith passes the check too.
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
	// build runs the lines of what to type that begin like this, each without a part that it begins with.
	build := func(source, begin, without string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(rest, "\n") {
			line = strings.TrimPrefix(line, "    ")
			if !strings.HasPrefix(line, begin) {
				continue
			}
			cmd := exec.Command("sh", "-ec", strings.ReplaceAll(strings.TrimPrefix(line, without), "/path/to/kubelith", root))
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		}
	}
	build(source, "go mod ", "")
	team := filepath.Join(dir, "team")

	s := harness.Start(t, harness.Options{NoTestImage: true})
	t.Run("storage", func(t *testing.T) {
		res := s.RunBinary(t, "plugin", "check", harness.DataDir+"/data/current/bin/kubelith-local")
		if res.Code != 0 || !strings.Contains(res.Stdout, "ok       csi-sanity of kubernetes-csi: ") || !strings.Contains(res.Stdout, " tests passed") {
			t.Errorf("plugin check: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
		}
	})
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

	// And with the lines that count.
	_, counting, _ := strings.Cut(rest, "\n```go\n")
	counting, _, found = strings.Cut(counting, "\n```\n")
	if !found {
		t.Fatal("docs/plugins.md has no example of metrics")
	}
	source = strings.NewReplacer(
		"\t\"context\"\n", "\t\"context\"\n\t\"fmt\"\n\t\"io\"\n\t\"sync/atomic\"\n",
		"func main() {", "var denied atomic.Int64\n\nfunc main() {",
		"Version: \"1\",", "Version: \"2\",\n"+counting,
		"return sdk.Deny(", "denied.Add(1)\n\t\treturn sdk.Deny(",
	).Replace(source)
	build(source, "go mod tidy && ", "go mod tidy && ") // what it imports now comes with Go
	install(t, s, team, harness.DataDir+"/plugins/admission/team")
	wait(t, s, "team", "is replaced", func(p pluginadmin.Plugin) bool { return ready(p) && p.Version == "2" })
	s.TryKubectl(t, "run", "more", "--image=kubelith/hello:1")
	waitMetrics(t, s, 30*time.Second, "what the plugin counts to be in /metrics", func(text string) error { // a plugin that answers late is left out
		if !strings.Contains(text, "\nkubelith_plugin_own_denied_total{plugin=\"team\"} 1\n") {
			return errors.New("it is not")
		}
		return nil
	})
}
