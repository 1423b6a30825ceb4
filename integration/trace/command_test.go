package trace

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/api"
)

const manifest = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
      - {name: prepare, image: IMAGE, command: [sleep, "0.2"]}
      containers:
      - {name: web, image: IMAGE, command: [sleep, "1000"]}
`

// testCommand: kubelith trace and kubectl --trace on a real server.
func testCommand(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	file := filepath.Join(t.TempDir(), "web.yaml")
	text := strings.ReplaceAll(manifest, "IMAGE", harness.Container("x").Image)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}

	t.Run("kubectl --trace", func(t *testing.T) {
		r := s.TryExec(t, s.BinaryPath(), "kubectl", "--trace", "apply", "-n", ns, "-f", file)
		show(t, "kubectl --trace apply", r)
		if r.Code != 0 || r.Stdout != "configmap/settings created\ndeployment.apps/web created\n" {
			t.Errorf("exit code %d, kubectl printed %q", r.Code, r.Stdout)
		}
		for _, want := range []string{"configmap/settings: done", "deployment/web -n " + ns + ": 2 of 2 pods are ready", "start web", "Where the time went"} {
			if !strings.Contains(r.Stderr, want) {
				t.Errorf("no %q", want)
			}
		}
		r = s.TryExec(t, s.BinaryPath(), "kubectl", "--trace", "apply", "-n", ns, "-f", file)
		if r.Code != 0 || !strings.Contains(r.Stdout, "unchanged") || strings.Contains(r.Stderr, "Where the time went") {
			t.Errorf("applied again: exit code %d, %s%s", r.Code, r.Stdout, r.Stderr)
		}
		r = s.TryExec(t, s.BinaryPath(), "kubectl", "--trace", "scale", "-n", ns, "deployment/web", "--replicas=3")
		show(t, "kubectl --trace scale", r)
		if r.Code != 0 || !strings.Contains(r.Stderr, "3 of 3 pods are ready") {
			t.Errorf("scale: exit code %d, %s", r.Code, r.Stderr)
		}
		// kubectl creates it in protobuf.
		r = s.TryExec(t, s.BinaryPath(), "kubectl", "--trace", "create", "deployment", "one", "-n", ns, "--image="+harness.Container("x").Image, "--", "sleep", "1000")
		if r.Code != 0 || !strings.Contains(r.Stderr, "deployment/one -n "+ns+": 1 of 1 pods are ready") {
			t.Errorf("create deployment: exit code %d, %s", r.Code, r.Stderr)
		}
		r = s.TryExec(t, s.BinaryPath(), "kubectl", "--trace", "delete", "-n", ns, "configmap/nothing")
		if r.Code != 1 || !strings.Contains(r.Stderr, "NotFound") || !strings.Contains(r.Stderr, "kubelith: --trace: the command has changed nothing") {
			t.Errorf("delete of nothing: exit code %d, %s", r.Code, r.Stderr)
		}
	})

	t.Run("formats", func(t *testing.T) {
		r := s.RunBinary(t, "trace", "deploy/web", "-n", ns)
		show(t, "trace deploy/web", r)
		if r.Code != 0 || !strings.Contains(r.Stdout, "start web") || strings.Contains(r.Stdout, "\x1b") {
			t.Errorf("exit code %d, %s", r.Code, r.Stderr)
		}
		r = s.RunBinary(t, "trace", "deployment", "web", "-n", ns, "-o", "json", "--follow")
		var timeline trace.Timeline
		if err := json.Unmarshal([]byte(r.Stdout), &timeline); err != nil || !timeline.Settled || timeline.Object.Name != "web" {
			t.Errorf("-o json: exit code %d, %v, %s", r.Code, err, r.Stderr)
		}
		if dir := os.Getenv("KUBELITH_TRACE_KEEP"); dir != "" { // for docs and fixtures
			if err := os.WriteFile(filepath.Join(dir, "real.json"), []byte(r.Stdout), 0o644); err != nil {
				t.Error(err)
			}
		}
		page := "/tmp/" + ns + ".html"
		if r = s.RunBinary(t, "trace", "deployment/web", "-n", ns, "-o", "html", page); r.Code != 0 || r.Stdout != "" {
			t.Errorf("-o html: exit code %d, %s%s", r.Code, r.Stdout, r.Stderr)
		}
		if content, err := os.ReadFile(s.Path(page)); err != nil || !strings.Contains(string(content), `"name":"web"`) {
			t.Errorf("the page: %v", err)
		}
		r = s.RunBinary(t, "trace", "deployment/web", "-n", ns, "-o", "otlp")
		var spans struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct{ TraceID, SpanID, Name string }
				}
			}
		}
		if err := json.Unmarshal([]byte(r.Stdout), &spans); err != nil || len(spans.ResourceSpans) == 0 || strings.Count(r.Stdout, "\n") != 1 {
			t.Errorf("-o otlp: exit code %d, %v, %.300s", r.Code, err, r.Stdout)
		}
		for _, args := range [][]string{{"trace", "--slowest", "3"}, {"trace", "--stats"}} {
			r = s.RunBinary(t, args...)
			show(t, strings.Join(args, " "), r)
			if r.Code != 0 || r.Stderr != "" || strings.Count(r.Stdout, "\n") < 4 {
				t.Errorf("%s: exit code %d, %s", args, r.Code, r.Stderr)
			}
		}
	})

	t.Run("serve", func(t *testing.T) { serve(t, s, ns) })

	t.Run("follow", func(t *testing.T) {
		s.Kubectl(t, "run", "broken", "-n", ns, "--image=localhost:1/none", "--restart=Never")
		r := s.RunBinary(t, "trace", "pod/broken", "-n", ns, "--follow", "--timeout", "10s")
		show(t, "trace --follow", r)
		if r.Code != 1 || !strings.HasPrefix(r.Stderr, "kubelith: pod/broken has not settled within 10s: ") || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("exit code %d, %s", r.Code, r.Stderr)
		}
		if r = s.RunBinary(t, "trace", "deployment/web", "-n", ns, "--follow"); r.Code != 0 {
			t.Errorf("of what has settled: exit code %d, %s", r.Code, r.Stderr)
		}
		r = s.TryExec(t, s.BinaryPath(), "kubectl", "--trace", "delete", "-n", ns, "deployment/web")
		show(t, "kubectl --trace delete", r)
		if r.Code != 0 || !strings.Contains(r.Stderr, "deployment/web -n "+ns+": deleted") {
			t.Errorf("delete: exit code %d, %s", r.Code, r.Stderr)
		}
	})

	t.Run("bad input", func(t *testing.T) {
		for line, want := range map[string]string{
			"pod/nobody":    "kubelith: no record of pod/nobody in namespace " + ns + ": the recorder keeps 24 h and 32 MB at most",
			"pood/web":      `kubelith: the server has no type "pood": did you mean "pod"?`,
			"node/moon":     "kubelith: no record of node/moon: ",
			"deployment":    "kubelith: ",
			"pod/web/main":  "kubelith: ",
			"pod/x -o moon": `kubelith: invalid value "moon" for flag -o: use text, json, html or otlp: see kubelith trace --help`,
		} {
			r := s.RunBinary(t, append([]string{"trace", "-n", ns}, strings.Fields(line)...)...)
			if r.Code != 1 || !strings.HasPrefix(r.Stderr, want) || strings.Count(r.Stderr, "\n") != 1 {
				t.Errorf("%s: exit code %d, %s", line, r.Code, r.Stderr)
			}
		}
	})
}

// show prints what a command printed, in a verbose run.
func show(t *testing.T, name string, r harness.Result) {
	t.Helper()
	if testing.Verbose() {
		t.Logf("%s:\n%s%s", name, r.Stdout, r.Stderr)
	}
}

// serve checks what --serve answers, and that it ends.
func serve(t *testing.T, s *harness.Server, ns string) {
	cmd := s.BinaryCommand("trace", "--serve")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	url := strings.TrimSpace(line)
	if err != nil || !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatalf("it printed %q, %v", line, err)
	}
	client := s.HTTPClient(30 * time.Second)
	get := func(url, host string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if code, body := get(url, ""); code != http.StatusOK || !strings.Contains(body, "connect-src 'self'") {
		t.Errorf("the page: %d %.200s", code, body)
	}
	if code, _ := get(url, "example.org"); code != http.StatusMisdirectedRequest {
		t.Errorf("under another name: %d", code)
	}
	var recent api.Recent
	if code, body := get(url+"recent", ""); code != http.StatusOK || json.Unmarshal([]byte(body), &recent) != nil || len(recent.Timelines) == 0 {
		t.Errorf("the list: %d %.200s", code, body)
	}
	if code, body := get(url+"timeline?resource=deployments.apps&name=web&namespace="+ns, ""); code != http.StatusOK || !strings.Contains(body, "spans") {
		t.Errorf("a timeline: %d %.200s", code, body)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
}
