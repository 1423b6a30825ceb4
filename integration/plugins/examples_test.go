package plugins

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// TestExamples: the examples do what they are there for, on one server. It restarts once: then initialresources knows
// what it has measured before, and disk-by-label, which came meanwhile, takes part in scheduling.
func TestExamples(t *testing.T) {
	t.Parallel()
	names := []string{"initialresources", "sidecar-by-label", "short-secrets", "podpreset", "denyescalatingexec", "securitycontextdeny"}
	config := pluginsHeader + example("initialresources", "  config: {minSamples: 3, refresh: 1s}") +
		example("sidecar-by-label", "  config:", "    label: sidecar", "    container: {name: sidecar, image: "+harness.Container("x").Image+", command: [sleep, \"1000\"]}") +
		example("short-secrets", "  config: {length: 8}") + example("podpreset", "  limits: {uid: auto}") + example("denyescalatingexec") + example("securitycontextdeny")
	s := harness.Start(t, harness.Options{ConfigYAML: config, Prepare: func(s *harness.Server) error {
		for _, name := range names {
			putExample(t, s, examplesDir, name)
		}
		return nil
	}})
	var manifests []string
	for _, file := range []string{"podpreset/crd.yaml", "denyescalatingexec/rbac.yaml", "initialresources/rbac.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../plugins/examples", file))
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, string(text))
	}
	s.KubectlInput(t, strings.Join(manifests, "\n---\n"), "apply", "-f", "-")
	waitPodPresets(t, s)

	// The pods of the others come later: initialresources would measure them too.
	ns := s.Namespace(t)
	learnt := t.Run("initialresources learns", func(t *testing.T) { testLearns(t, s, ns) })
	putDiskByLabel(t, s)
	s.Restart(t)
	for _, name := range append(names, "disk-by-label") {
		wait(t, s, name, "is ready after the restart", ready)
	}
	waitPodPresets(t, s)
	t.Run("initialresources has learnt", func(t *testing.T) {
		if !learnt {
			t.Skip("nothing to check: initialresources has failed before the restart")
		}
		testHasLearnt(t, s, ns)
	})
	together(t, s, part{"sidecar", testSidecar}, part{"secrets", testSecrets}, part{"preset", testPreset}, part{"exec", testExec},
		part{"security context", testSecurityContext}, part{"disk by label", testDiskByLabel})
}

// waitPodPresets waits until PodPresets are served: podpreset refuses pods when it cannot read them.
func waitPodPresets(t *testing.T, s *harness.Server) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "PodPresets to be served", func() error {
		_, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/apis/settings.kubelith.io/v1alpha1/podpresets").DoRaw(t.Context())
		return err
	})
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
	secrets := s.Client(t).CoreV1().Secrets(ns)
	create := func(name, value string, dryRun ...string) error {
		_, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"password": []byte(value)}},
			metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
		err := create("short", "1234567", dryRun...)
		if want := `admission webhook "length.short-secrets.plugin.kubelith.io" denied the request: password has 7 characters: give it 8 or more`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a short one, dry run %q: %v, want %q", dryRun, err, want)
		}
	}
	if err := create("long", "12345678"); err != nil {
		t.Errorf("a long one: %v", err)
	}
	if _, err := secrets.Patch(t.Context(), "long", types.MergePatchType, []byte(`{"stringData":{"password":"1"}}`), metav1.PatchOptions{}); err == nil {
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
