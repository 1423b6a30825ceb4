package plugins

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/pluginadmin"
)

const (
	header  = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"
	soon    = 30 * time.Second
	nothing = "/opt/kubelith/nothing" // where the plugin is, as the server sees it
)

// configure writes the configuration of a running server.
func configure(t *testing.T, s *harness.Server, text string) {
	t.Helper()
	if err := os.WriteFile(s.Path("/etc/kubelith/config.yaml"), []byte(header+text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// logged waits for a line of the log.
func logged(t *testing.T, s *harness.Server, pattern string) {
	t.Helper()
	line := regexp.MustCompile(pattern)
	harness.Eventually(t, soon, "the log has "+pattern, func() error {
		if !line.MatchString(s.Logs()) {
			return errors.New("it has not")
		}
		return nil
	})
}

// condition returns the Node's condition of a plugin.
func condition(t *testing.T, s *harness.Server, plugin string) *corev1.NodeCondition {
	t.Helper()
	for _, c := range s.Node(t).Status.Conditions {
		if c.Type == corev1.NodeConditionType("Plugin/"+plugin) {
			return &c
		}
	}
	return nil
}

func waitCondition(t *testing.T, s *harness.Server, plugin, what string, wanted func(*corev1.NodeCondition) bool) {
	t.Helper()
	harness.Eventually(t, soon, "the condition of "+plugin+" "+what, func() error {
		if c := condition(t, s, plugin); !wanted(c) {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// TestBadConfiguration: an error in plugins is reported in one line, and nothing is started.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	const file = "/etc/kubelith/config.yaml"
	for name, tc := range map[string]struct{ text, want string }{
		"two of one name": {"plugins:\n- {name: a, kind: admission, path: /a}\n- {name: a, kind: storage, path: /b}\n",
			file + `:5: plugin "a": the plugin in line 4 has the same name: rename one of them`},
		"unknown kind": {"plugins:\n- {name: a, kind: admision, path: /a}\n", file + `:4: plugin "a": unknown kind "admision": did you mean "admission"?`},
		"unknown key":  {"plugins:\n- name: a\n  kind: admission\n  pth: /a\n", file + `:6: unknown key "pth" of a plugin: did you mean "path"?`},
		"bad checksum": {"plugins:\n- {name: a, kind: admission, path: /a, sha256: abc}\n", file + `:4: plugin "a": sha256 "abc" is not a SHA-256 sum: write the 64 lower-case hex digits that sha256sum prints`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.MkdirAll(s.Path(filepath.Dir(file)), 0o755); err != nil {
				t.Fatal(err)
			}
			configure(t, s, tc.text)
			res := s.RunBinary(t, "server")
			if res.Code != 1 || res.Stdout != "" || res.Stderr != "kubelith: "+tc.want+"\n" {
				t.Errorf("code %d, stdout %q, stderr %q, want %q", res.Code, res.Stdout, res.Stderr, tc.want)
			}
			if _, err := os.Stat(s.Path(harness.DataDir + "/version")); err == nil {
				t.Error("something was created in the data directory")
			}
		})
	}
}

// TestOperate goes through what an operator does with plugins and sees of them, on one server.
func TestOperate(t *testing.T) {
	t.Parallel()
	program := harness.BuildProgram(t, "./nothing")
	const one = "plugins:\n- name: one\n  kind: admission\n  path: " + nothing + "\n  args: [\"1.0\"]\n  limits: {memory: 64Mi}\n"
	s := harness.Start(t, harness.Options{NoTestImage: true, Disable: []string{"local-storage"}, ConfigYAML: header + one, Prepare: func(s *harness.Server) error {
		install(t, s, program, nothing)
		return nil
	}})
	first := wait(t, s, "one", "is ready", ready)

	t.Run("list and describe", func(t *testing.T) { listAndDescribe(t, s, first) })
	t.Run("condition", func(t *testing.T) {
		waitCondition(t, s, "one", "is true", func(c *corev1.NodeCondition) bool {
			return c != nil && c.Status == corev1.ConditionTrue && c.Reason == "PluginReady"
		})
	})
	t.Run("Event", func(t *testing.T) { event(t, s, "PluginReady", "admission plugin one: ready, "+nothing+" 1.0") })
	t.Run("metrics", func(t *testing.T) { metrics(t, s) })
	t.Run("identity", func(t *testing.T) { identity(t, s, first) })
	t.Run("restart", func(t *testing.T) { restart(t, s) })
	t.Run("reload", func(t *testing.T) { reload(t, s, one) })
	t.Run("directory", func(t *testing.T) { directory(t, s, program) })
	t.Run("no server", func(t *testing.T) {
		s.Stop(t)
		res := s.RunBinary(t, "plugin", "list")
		if res.Code != 1 || !strings.HasPrefix(res.Stderr, "kubelith: no server runs with the socket /run/kubelith/plugins.sock") {
			t.Errorf("code %d, stderr %q", res.Code, res.Stderr)
		}
		if harness.Alive(first.PID) {
			t.Error("the plugin has outlived the server")
		}
	})
}

func listAndDescribe(t *testing.T, s *harness.Server, p pluginadmin.Plugin) {
	if p.Kind != "admission" || p.Version != "1.0" || p.Path != nothing || p.Source != "/etc/kubelith/config.yaml:4" || p.Starts != 1 || len(p.SHA256) != 64 {
		t.Errorf("%+v", p)
	}
	if target, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID)); err != nil || filepath.Base(target) != "nothing" {
		t.Errorf("process %d is %s, %v", p.PID, target, err)
	}
	if res := s.RunBinary(t, "plugin", "list"); res.Code != 0 || !regexp.MustCompile(`(?m)^one +admission +ready +(\d+m)?\d+s +1 +1\.0 *$`).MatchString(res.Stdout) {
		t.Errorf("code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	res := s.RunBinary(t, "plugin", "list", "-o=json")
	var printed []map[string]any
	if err := json.Unmarshal([]byte(res.Stdout), &printed); err != nil || res.Code != 0 {
		t.Fatalf("code %d, %v\n%s%s", res.Code, err, res.Stdout, res.Stderr)
	}
	one := printed[slices.IndexFunc(printed, func(p map[string]any) bool { return p["name"] == "one" })]
	for key, want := range map[string]any{"kind": "admission", "phase": "ready", "version": "1.0", "path": nothing, "source": "/etc/kubelith/config.yaml:4",
		"sha256": p.SHA256, "pid": float64(p.PID), "starts": 1.0} {
		if one[key] != want {
			t.Errorf("plugin list -o=json: %s is %v, want %v", key, one[key], want)
		}
	}
	res = s.RunBinary(t, "plugin", "describe", "one")
	for _, want := range []string{"Name:              one\n", "SHA-256:           " + p.SHA256, "Wanted by:         /etc/kubelith/config.yaml:4\n", "validating hook nothing: CREATE of nothings.nothing.example.com"} {
		if res.Code != 0 || !strings.Contains(res.Stdout, want) {
			t.Errorf("code %d: no %q in\n%s%s", res.Code, want, res.Stdout, res.Stderr)
		}
	}
	if res := s.RunBinary(t, "plugin", "describe", "two"); res.Code != 1 || res.Stderr != "kubelith: no plugin has the name \"two\": kubelith plugin list shows them\n" {
		t.Errorf("code %d, stderr %q", res.Code, res.Stderr)
	}
	if info, err := os.Stat(s.Path("/run/kubelith/plugins.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info, err)
	}
}

// event waits for an Event of the Node.
func event(t *testing.T, s *harness.Server, reason, message string) {
	t.Helper()
	eventOf(t, s, "default", "Node", s.Node(t).Name, reason, message)
}

func metrics(t *testing.T, s *harness.Server) {
	text, err := metricsOf(t, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{
		`kubelith_plugin_up\{kind="admission",plugin="one"\} 1`,
		`kubelith_plugin_starts_total\{kind="admission",plugin="one"\} 1`,
		`kubelith_plugin_changes_total\{kind="admission",plugin="one",reason="PluginReady"\} 1`,
		`kubelith_plugin_memory_bytes\{kind="admission",plugin="one"\} [1-9]`,
		`kubelith_plugin_cpu_seconds_total\{kind="admission",plugin="one"\} `,
		`kubelith_plugin_in_flight\{kind="admission",plugin="one"\} 0`,
	} {
		if !regexp.MustCompile(`(?m)^` + pattern).MatchString(text) {
			t.Errorf("no %s", pattern)
		}
	}
}

// identity: the plugin's kubeconfig is for its own user, without rights.
func identity(t *testing.T, s *harness.Server, p pluginadmin.Plugin) {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	variables := strings.Split(string(environ), "\x00")
	i := slices.IndexFunc(variables, func(v string) bool { return strings.HasPrefix(v, "KUBELITH_KUBECONFIG=") })
	if i < 0 {
		t.Fatalf("no kubeconfig: %q", variables)
	}
	kubeconfig := "--kubeconfig=" + strings.TrimPrefix(variables[i], "KUBELITH_KUBECONFIG=")
	if res := s.RunBinary(t, "kubectl", kubeconfig, "auth", "whoami", "-o=jsonpath={.status.userInfo.username} {.status.userInfo.groups}"); res.Stdout != `system:kubelith:plugin:one ["system:authenticated"]` {
		t.Errorf("it is %s%s", res.Stdout, res.Stderr)
	}
	if res := s.RunBinary(t, "kubectl", kubeconfig, "get", "pods", "-A"); res.Code == 0 || !strings.Contains(res.Stderr, "forbidden") {
		t.Errorf("it lists pods: %s%s", res.Stdout, res.Stderr)
	}
}

func restart(t *testing.T, s *harness.Server) {
	before := list(t, s)["one"]
	res := s.RunBinary(t, "plugin", "restart", "one")
	after := list(t, s)["one"]
	if res.Code != 0 || res.Stdout != fmt.Sprintf("plugin one is ready again, as process %d\n", after.PID) || after.PID == before.PID || after.Starts != before.Starts+1 {
		t.Errorf("code %d, %s%s\nbefore %+v\nafter  %+v", res.Code, res.Stdout, res.Stderr, before, after)
	}
	event(t, s, "PluginReplaced", "admission plugin one: replaced by "+nothing+" 1.0")
	harness.Eventually(t, soon, "the old process to end", func() error {
		if harness.Alive(before.PID) {
			return errors.New("it runs")
		}
		return nil
	})
}

// reload: the file is the truth for plugins, as long as it is right.
func reload(t *testing.T, s *harness.Server, one string) {
	before := list(t, s)["one"]
	const two = "- name: two\n  kind: admission\n  path: " + nothing + "\n  args: [\"2.0\"]\n  limits: {uid: auto, capabilities: [NET_BIND_SERVICE]}\n"
	configure(t, s, one+two)
	second := wait(t, s, "two", "is ready", ready)
	if uid := strings.Fields(harness.ProcStatus(t, second.PID, "Uid"))[1]; uid == "0" || uid == "65534" {
		t.Errorf("two runs as %s, want its own user", uid)
	}
	mayHave(t, s, before.PID)
	mayHave(t, s, second.PID, unix.CAP_NET_BIND_SERVICE)
	if now := list(t, s)["one"]; now.PID != before.PID {
		t.Errorf("one was replaced though its entry has not changed: %+v", now)
	}

	configure(t, s, one+two+"- name: three\n  kind: moon\n")
	logged(t, s, `config.yaml:14: plugin \\?"three\\?": unknown kind .*: no plugin is changed`)
	if all := list(t, s); len(all) != 2 || all["one"].PID != before.PID || all["two"].PID != second.PID {
		t.Errorf("a broken file has changed plugins: %+v", all)
	}

	// A configuration that the plugin refuses: the process that runs stays.
	configure(t, s, one+strings.Replace(two, "\"2.0\"", "\"3.0\"", 1)+"  config: {moon: full}\n")
	kept := wait(t, s, "two", "keeps running", func(p pluginadmin.Plugin) bool {
		return p.Phase == "ready" && strings.Contains(p.Message, "keeps running") && strings.Contains(p.Message, `unknown field "moon"`)
	})
	if kept.PID != second.PID {
		t.Errorf("%+v", kept)
	}
	event(t, s, "PluginFailed", "admission plugin two: its replacement ")
	if res := s.RunBinary(t, "plugin", "restart", "two"); res.Code != 1 || !strings.Contains(res.Stderr, `unknown field "moon"`) || strings.Count(res.Stderr, "\n") != 1 {
		t.Errorf("code %d, stderr %q", res.Code, res.Stderr)
	}

	configure(t, s, "logLevel: debug\n"+one+strings.Replace(two, "\"2.0\"", "\"3.0\"", 1)+"  config: {text: x}\n")
	third := wait(t, s, "two", "is replaced", func(p pluginadmin.Plugin) bool { return ready(p) && p.Version == "3.0" })
	if third.PID == second.PID {
		t.Errorf("%+v", third)
	}
	logged(t, s, `the change of logLevel takes effect at the next start`)

	// A missing executable: one line, and it is started when it is there.
	configure(t, s, one+"- {name: three, kind: admission, path: /opt/kubelith/three}\n")
	missing := waitPhase(t, s, "three", "backoff", "failed")
	if !strings.Contains(missing.Message, "/opt/kubelith/three") {
		t.Errorf("%+v", missing)
	}
	waitCondition(t, s, "three", "is false", func(c *corev1.NodeCondition) bool {
		return c != nil && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "/opt/kubelith/three")
	})
	waitCondition(t, s, "two", "is gone", func(c *corev1.NodeCondition) bool { return c == nil })
	install(t, s, harness.BuildProgram(t, "./nothing"), "/opt/kubelith/three")
	wait(t, s, "three", "is ready", ready)
	waitCondition(t, s, "three", "is true", func(c *corev1.NodeCondition) bool { return c != nil && c.Status == corev1.ConditionTrue })

	configure(t, s, "")
	harness.Eventually(t, soon, "all plugins to be gone", func() error {
		if all, err := tryList(t, s); err != nil || len(all) > 0 {
			return fmt.Errorf("%+v, %w", all, err)
		}
		return nil
	})
	if text, err := metricsOf(t, s); err != nil || strings.Contains(text, "kubelith_plugin_up{") {
		t.Errorf("/metrics has plugins that are gone, or %v", err)
	}
	configure(t, s, one)
	wait(t, s, "one", "is ready", ready)
}

// mayHave asserts that a process has these capabilities, those of them that its server has, and can never get others.
func mayHave(t *testing.T, s *harness.Server, pid int, capabilities ...int) {
	t.Helper()
	server, err := strconv.ParseUint(harness.ProcStatus(t, s.PID(), "CapBnd"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	var want uint64
	for _, c := range capabilities {
		want |= server & (1 << c)
	}
	if harness.ProcStatus(t, pid, "NoNewPrivs") != "1" {
		t.Errorf("process %d may gain privileges by executing a program", pid)
	}
	for _, set := range []string{"CapEff", "CapBnd"} {
		if got := harness.ProcStatus(t, pid, set); got != fmt.Sprintf("%016x", want) {
			t.Errorf("%s of process %d is %s, want %016x", set, pid, got, want)
		}
	}
}

// directory: an executable in the directory of its kind is a plugin, unless the configuration has its name.
func directory(t *testing.T, s *harness.Server, program string) {
	dir := harness.DataDir + "/plugins/admission/"
	install(t, s, program, dir+"dropped")
	install(t, s, program, dir+"one")
	dropped := wait(t, s, "dropped", "is ready", ready)
	if dropped.Version != "1" || dropped.Path != dir+"dropped" {
		t.Errorf("%+v", dropped)
	}
	logged(t, s, `plugin one of .* is ignored: /etc/kubelith/config.yaml:4 has one of that name`)
	if p := list(t, s)["one"]; p.Path != nothing {
		t.Errorf("%+v", p)
	}
	if err := os.Remove(s.Path(dir + "dropped")); err != nil {
		t.Fatal(err)
	}
	wait(t, s, "dropped", "is gone", func(p pluginadmin.Plugin) bool { return p.Name == "" })
}
