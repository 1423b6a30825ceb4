package plugins

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/integration/harness"
)

const (
	// examplesDir has the examples' executables, inside the sandbox.
	examplesDir   = "/opt/kubelith/examples"
	pluginsHeader = header + "plugins:\n"
)

// example is the entry of an example in the configuration; more is further lines of it.
func example(name string, more ...string) string {
	lines := append([]string{"- name: " + name, "  kind: admission", "  path: " + examplesDir + "/" + name}, more...)
	return strings.Join(lines, "\n") + "\n"
}

// TestAdmissionExamples: the examples do what they are there for.
func TestAdmissionExamples(t *testing.T) {
	t.Parallel()
	names := []string{"sidecar-by-label", "short-secrets", "podpreset", "denyescalatingexec", "securitycontextdeny"}
	config := pluginsHeader +
		example("sidecar-by-label", "  config:", "    label: sidecar", "    container: {name: sidecar, image: "+harness.Container("x").Image+", command: [sleep, \"1000\"]}") +
		example("short-secrets", "  config: {length: 8}") + example("podpreset", "  limits: {uid: auto}") + example("denyescalatingexec") + example("securitycontextdeny")
	s := harness.Start(t, harness.Options{ConfigYAML: config, Prepare: func(s *harness.Server) error {
		for _, name := range names {
			putExample(t, s, examplesDir, name)
		}
		return nil
	}})
	for _, file := range []string{"podpreset/crd.yaml", "denyescalatingexec/rbac.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../plugins/examples", file))
		if err != nil {
			t.Fatal(err)
		}
		s.KubectlInput(t, string(text), "apply", "-f", "-")
	}
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *harness.Server)
	}{
		{"sidecar", testSidecar}, {"secrets", testSecrets}, {"preset", testPreset}, {"exec", testExec}, {"security context", testSecurityContext},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.run(t, s)
		})
	}
}

func testSidecar(t *testing.T, s *harness.Server) {
	pod := harness.Pod(s.Namespace(t), "a", "sleep", "1000")
	pod.Labels = map[string]string{"sidecar": ""}
	running := s.Run(t, pod)
	if len(running.Spec.Containers) != 2 || running.Spec.Containers[1].Name != "sidecar" || s.ContainerPID(t, running, "sidecar") == 0 {
		t.Errorf("containers %+v", running.Spec.Containers)
	}
}

func testSecrets(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	create := func(name, value string, options ...string) harness.Result {
		return s.TryKubectl(t, append([]string{"-n", ns, "create", "secret", "generic", name, "--from-literal=password=" + value}, options...)...)
	}
	for _, options := range [][]string{nil, {"--dry-run=server"}} {
		r := create("short", "1234567", options...)
		if want := `admission webhook "length.short-secrets.plugin.kubelith.io" denied the request: password has 7 characters: give it 8 or more`; r.Code == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("kubectl printed %q, want %q", r.Stderr, want)
		}
	}
	if r := create("long", "12345678"); r.Code != 0 {
		t.Errorf("a long one: %s", r.Stderr)
	}
	if r := s.TryKubectl(t, "-n", ns, "patch", "secret", "long", "--type=merge", "-p", `{"stringData":{"password":"1"}}`); r.Code == 0 {
		t.Error("an update makes it short")
	}
}

func testPreset(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	preset := `{apiVersion: settings.kubelith.io/v1alpha1, kind: PodPreset, metadata: {name: front, namespace: ` + ns + `},
spec: {selector: {matchLabels: {role: front}}, env: [{name: PRESET, value: "42"}], volumes: [{name: cache, emptyDir: {}}], volumeMounts: [{name: cache, mountPath: /cache}]}}`
	harness.Eventually(t, 30*time.Second, "PodPresets to be served", func() error {
		cmd := s.KubectlCommand("apply", "-f", "-")
		cmd.Stdin = strings.NewReader(preset)
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.New(string(out))
		}
		return nil
	})
	pod := harness.Pod(ns, "a", harness.Shell("echo $PRESET > /cache/file; cat /cache/file")...)
	pod.Labels = map[string]string{"role": "front"}
	ended := s.RunToEnd(t, pod)
	if logs := s.PodLogs(t, ended, ended.Spec.Containers[0].Name); strings.TrimSpace(logs) != "42" {
		t.Errorf("the container logged %q", logs)
	}
}

func testExec(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	plain := s.Run(t, harness.Pod(ns, "plain", "sleep", "1000"))
	if out := s.PodExec(t, plain, plain.Spec.Containers[0].Name, "echo", "in"); strings.TrimSpace(out) != "in" {
		t.Errorf("exec printed %q", out)
	}
	privileged := harness.Pod(ns, "privileged", "sleep", "1000")
	privileged.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	s.Run(t, privileged)
	for _, verb := range []string{"exec", "attach"} {
		args := []string{"-n", ns, verb, "privileged"}
		if verb == "exec" {
			args = append(args, "--", "echo", "in")
		}
		if r := s.TryKubectl(t, args...); r.Code == 0 || !strings.Contains(r.Stderr, "cannot exec into or attach to a privileged container") {
			t.Errorf("%s: %d %s", verb, r.Code, r.Stderr)
		}
	}
}

func testSecurityContext(t *testing.T, s *harness.Server) {
	pod := harness.Pod(s.Namespace(t), "a", "sleep", "1000")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}
	_, err := s.Client(t).CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "spec.securityContext.runAsUser is forbidden") {
		t.Errorf("%v", err)
	}
}

// TestMissingAtStart: without its executable, a plugin that may not fail keeps requests back, but neither the server's
// start nor kube-system nor the node; it reviews as soon as it is there.
func TestMissingAtStart(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoTestImage: true, NoWait: true, ConfigYAML: pluginsHeader + example("short-secrets"),
		Prepare: func(s *harness.Server) error { return os.MkdirAll(s.Path(examplesDir), 0o755) }}) // a directory that is there is watched
	harness.Eventually(t, 60*time.Second, "the node to be Ready", func() error {
		cmd := s.KubectlCommand("get", "nodes", "--no-headers")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), " Ready ") {
			return fmt.Errorf("%s, %w", out, err)
		}
		return nil
	})
	configMap := func(ns string) error {
		_, err := s.Client(t).CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		return err
	}
	if err := configMap(metav1.NamespaceSystem); err != nil {
		t.Errorf("in kube-system: %v", err)
	}
	if err := configMap(metav1.NamespaceDefault); err == nil || !strings.Contains(err.Error(), "plugin short-secrets is not running") {
		t.Errorf("while nothing is known of the plugin: %v", err)
	}
	if _, err := s.Client(t).CoreV1().Events(metav1.NamespaceDefault).Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "a", Namespace: metav1.NamespaceDefault},
	}, metav1.CreateOptions{}); err != nil {
		t.Errorf("an Event, which would report it: %v", err)
	}
	putExample(t, s, examplesDir, "short-secrets")
	harness.Eventually(t, 60*time.Second, "the plugin to review", func() error {
		if err := configMap(metav1.NamespaceDefault); err != nil {
			return fmt.Errorf("a ConfigMap, which it does not review: %w", err)
		}
		return shortSecretDenied(t, s)
	})
}

// TestEverythingFails: a plugin that reviews every request and may not fail is gone when the server starts again. Other
// requests are held back, as with a webhook, but the server starts and the node stays alive.
func TestEverythingFails(t *testing.T) {
	t.Parallel()
	path := examplesDir + "/everything"
	s := harness.Start(t, harness.Options{NoTestImage: true, ConfigYAML: pluginsHeader + example("everything"), Prepare: func(s *harness.Server) error {
		install(t, s, harness.BuildProgram(t, "./everything"), path)
		return nil
	}})
	wait(t, s, "everything", "is ready", ready)
	create := func() harness.Result {
		return s.TryKubectl(t, "-n", "kube-public", "create", "configmap", "a", "--dry-run=server")
	}
	if r := create(); r.Code != 0 || !strings.Contains(r.Stderr, "everything was here") {
		t.Fatalf("it does not review: %+v", r)
	}
	s.Stop(t)
	if err := os.Remove(s.Path(path)); err != nil {
		t.Fatal(err)
	}
	s.Launch(t)
	began := time.Now()
	harness.Eventually(t, 90*time.Second, "the node to be Ready, with a heartbeat of the new server", func() error {
		nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(nodes.Items) != 1 {
			return fmt.Errorf("%v, %w", nodes, err)
		}
		for _, c := range nodes.Items[0].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && c.LastHeartbeatTime.After(began) {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", nodes.Items[0].Status.Conditions)
	})
	if r := create(); r.Code == 0 || !strings.Contains(r.Stderr, "plugin everything is not running") {
		t.Errorf("without the plugin: %+v", r)
	}
}
