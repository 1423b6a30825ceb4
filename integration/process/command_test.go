package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/integration/testimage"
)

func TestKubectl(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	if out := s.Exec(t, s.BinaryPath(), "kubectl", "get", "--raw=/livez/ping"); out != "ok" {
		t.Errorf("kubelith kubectl get --raw=/livez/ping: %q", out)
	}
	if err := os.Symlink(s.BinaryPath(), s.Path("/var/lib/kubectl")); err != nil {
		t.Fatal(err)
	}
	if out := s.Exec(t, "/var/lib/kubectl", "get", "nodes", "-o", "name"); !strings.HasPrefix(out, "node/") {
		t.Errorf("kubectl get nodes, by a symbolic link: %q", out)
	}
	var version struct {
		ClientVersion, ServerVersion struct{ GitVersion string }
	}
	if err := json.Unmarshal([]byte(s.Kubectl(t, "version", "-o", "json")), &version); err != nil {
		t.Fatal(err)
	}
	if v := version.ServerVersion.GitVersion; v != version.ClientVersion.GitVersion || !strings.HasPrefix(v, "v1.") {
		t.Errorf("kubectl and server have versions %q and %q", version.ClientVersion.GitVersion, v)
	}
	res := s.TryKubectl(t, "get", "pod", "nobody")
	if res.Code != 1 || !strings.Contains(res.Stderr, `pods "nobody" not found`) {
		t.Errorf("exit code %d, stderr %q", res.Code, res.Stderr)
	}
	// Another kubeconfig goes first.
	cmd := s.KubectlCommand("get", "nodes")
	cmd.Env = append(os.Environ(), "KUBECONFIG=/nonexistent")
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("KUBECONFIG was not heeded: %s", out)
	}
}

// TestCompletion: bash completes our commands and flags, and what follows kubectl, also for the symbolic link.
func TestCompletion(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	bash := func(script string) string {
		t.Helper()
		return s.Exec(t, "bash", "-c", `set -e; dir=$(mktemp -d); trap 'rm -r "$dir"' EXIT; ln -s "`+s.BinaryPath()+`" "$dir/kubelith"; ln -s "`+s.BinaryPath()+`" "$dir/kubectl"
			PATH=$dir:$PATH; source <(kubelith completion bash); `+script)
	}
	for words, want := range map[string]string{
		"kubelith ser":                    "server",
		"kubelith server --log-l":         "--log-level",
		"kubelith kubectl get nam":        "namespaces",
		"kubelith kubectl get ns kube-sy": "kube-system",
	} {
		out := bash(`COMP_WORDS=(` + words + `); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _kubelith; echo "${COMPREPLY[@]}"`)
		if !strings.Contains(" "+strings.TrimSpace(out)+" ", " "+want) {
			t.Errorf("%s: completed by %q, want %s", words, out, want)
		}
	}
	for _, kubectl := range []string{"kubectl", "kubelith kubectl"} {
		if out := bash(kubectl + ` __complete get ns kube-sy; ` + kubectl + ` completion bash | grep -c "complete -o default -F __start_kubectl kubectl"`); !strings.HasPrefix(out, "kube-system\n") {
			t.Errorf("%s: %q", kubectl, out)
		}
	}
}

// TestPinned: the kubelet leaves the embedded images alone.
func TestPinned(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	for _, image := range []string{"kubelith/pause:1", "kubelith/hello:1"} {
		out := s.Exec(t, s.BinaryPath(), "ctr", "images", "list")
		if !regexp.MustCompile(`(?m)^\S*` + image + ` .*io\.cri-containerd\.pinned=pinned`).MatchString(out) {
			t.Errorf("%s is not pinned:\n%s", image, out)
		}
	}
}

func TestCtr(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := s.Run(t, harness.Pod(ns, "a", "/bin/probe", "sleep"))
	_, id, _ := strings.Cut(harness.Status(pod, "main").ContainerID, "://")
	out := s.Exec(t, s.BinaryPath(), "ctr", "tasks", "list")
	if want := fmt.Sprintf(`(?m)^%s +%d +RUNNING`, id, s.ContainerPID(t, pod, "main")); !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("the container is not listed:\n%s", out)
	}
	if res := s.RunBinary(t, "ctr", "images", "list", "--quiet"); res.Stderr != "" {
		t.Errorf("ctr printed on stderr: %s", res.Stderr)
	}
	if out := s.Exec(t, s.BinaryPath(), "ctr", "images", "list", "--quiet"); !strings.Contains(out, testimage.Ref+"\n") {
		t.Errorf("%s is not listed:\n%s", testimage.Ref, out)
	}
	if res := s.TryExec(t, s.BinaryPath(), "ctr", "tasks", "kill", "nobody"); res.Code == 0 || res.Stderr == "" {
		t.Errorf("an error of ctr: exit code %d, stderr %q", res.Code, res.Stderr)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	out := s.Exec(t, s.BinaryPath(), "version")
	patches := `patch +kubelet-ending: .*\(k8s\.io/kubernetes v1\..*\)\npatch +kubelet-registration: .*\npatch +kubelet-runtime: .*\n` +
		`patch +kubelet-volumes: .*\(k8s\.io/kubernetes v1\.`
	if os.Getenv("UNPATCHED") != "" {
		patches = "patch +none$"
	}
	for _, want := range []string{`kubelith +\S+`, `kubernetes +v1\.\d+\.\d+\S*`, `etcd +v3\.`, `containerd +v2\.`, `coredns +v1\.`, `go +go1\.\d+\S* linux/`, patches} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(out) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if v := s.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.kubeletVersion}"); !strings.Contains(out, v) {
		t.Errorf("the kubelet has %s:\n%s", v, out)
	}
}

// TestCheck: on a host where a server runs check reports that the ports are taken; next to it everything is fine.
func TestCheck(t *testing.T) {
	t.Parallel()
	idle := harness.New(t, harness.Options{NoTestImage: true})
	res := idle.RunBinary(t, "check")
	if res.Code != 0 {
		t.Errorf("check on a host that runs servers: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	lines := strings.Split(strings.TrimSpace(res.Stdout), "\n")
	form := regexp.MustCompile(`^(ok|warning|failed) +[^:]+: .`)
	for _, line := range lines {
		if !form.MatchString(line) {
			t.Errorf("not the form of a check: %q", line)
		}
	}
	for _, what := range []string{"cgroups", "overlayfs", "nft", "clock", "port 6443", "port 10250", "data directory", "disk: 99 of 100 syncs"} {
		if !strings.Contains(res.Stdout, " "+what) {
			t.Errorf("nothing is reported about %s:\n%s", what, res.Stdout)
		}
	}
	s := cluster.Get(t)
	if res = s.RunBinary(t, "check"); res.Code != 0 || !strings.Contains(res.Stdout, "in use by the running server's apiserver") {
		t.Errorf("on the host of the server itself: exit code %d\n%s", res.Code, res.Stdout)
	}
	res = s.RunBinary(t, "check", "--data-dir", "/var/lib/kubelith-second")
	if want := fmt.Sprintf("pid %d", s.PID()); res.Code == 0 || !regexp.MustCompile(`(?m)^failed +port 6443.*apiserver.*`+want).MatchString(res.Stdout) {
		t.Errorf("beside a server: exit code %d, no line about port 6443 and %s\n%s", res.Code, want, res.Stdout)
	}
}

func TestSecondServer(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	res := s.RunBinary(t, "server")
	if want := fmt.Sprintf("in use by process %d", s.PID()); res.Code == 0 || !strings.Contains(res.Stderr, want) || strings.Count(res.Stderr, "\n") != 1 {
		t.Errorf("exit code %d, stderr lacks %q or has more than a line: %s", res.Code, want, res.Stderr)
	}
	if err := alive(s); err != nil {
		t.Error(err)
	}
	if res := s.RunBinary(t, "reset", "--yes", "--data"); res.Code == 0 || !strings.Contains(res.Stderr, fmt.Sprintf("pid %d", s.PID())) {
		t.Errorf("reset beside a server: exit code %d, %s", res.Code, res.Stderr)
	}
	if !exists(s, harness.AdminKubeconfig) {
		t.Fatal("reset removed the kubeconfig of a running server")
	}
}

// TestControlPlaneOnly: without the node's components there is a cluster without nodes. Its log is JSON.
func TestControlPlaneOnly(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Disable: controlPlane, Args: []string{"--log-format=json"}, NoWait: true, NoTestImage: true})
	harness.Eventually(t, 60*time.Second, "the API", func() error {
		if err := alive(s); err != nil {
			return err
		}
		if !exists(s, harness.AdminKubeconfig) {
			return errors.New("no kubeconfig yet")
		}
		_, err := s.Client(t).CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	s.Deploy(t, harness.Pod("default", "app", "/bin/probe", "sleep"), 1)
	harness.Eventually(t, 30*time.Second, "a pod that cannot be scheduled", func() error {
		list, err := s.Client(t).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			for _, c := range p.Status.Conditions {
				if c.Reason == "Unschedulable" {
					return nil
				}
			}
		}
		return fmt.Errorf("%d pods", len(list.Items))
	})
	harness.Eventually(t, 15*time.Second, "the controllers to count the pod", func() error {
		d, err := s.Client(t).AppsV1().Deployments("default").Get(t.Context(), "app", metav1.GetOptions{})
		if err == nil && d.Status.Replicas != 1 {
			err = fmt.Errorf("the Deployment has %d pods", d.Status.Replicas)
		}
		return err
	})
	for _, port := range []string{"10250", "10256", "10053"} {
		if conn, err := s.DialContext(t.Context(), "tcp", "127.0.0.1:"+port); err == nil {
			conn.Close()
			t.Errorf("a process listens on port %s", port)
		}
	}
	for _, path := range []string{harness.RunDir + "/containerd/containerd.sock", "/var/lib/kubelet"} {
		if exists(s, path) {
			t.Errorf("%s exists", path)
		}
	}
	s.Stop(t)
	components := map[string]bool{}
	for i, line := range strings.Split(strings.TrimSpace(s.Logs()), "\n") {
		var entry struct{ Time, Level, Msg, Component string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("line %d of the log is no JSON object: %s", i+1, line)
		}
		if _, err := time.Parse(time.RFC3339Nano, entry.Time); err != nil || entry.Level == "" || entry.Component == "" {
			t.Errorf("line %d of the log lacks something: %s", i+1, line)
		}
		components[entry.Component] = true
	}
	if !components["etcd"] || !components["apiserver"] && !components["kubernetes"] {
		t.Errorf("components in the log: %v", components)
	}
}
