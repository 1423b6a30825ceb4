package process

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestDirectories moves everything that can be moved: the server, `ctr`, `kubectl` and `reset` keep to it, and nothing
// is created at the usual places. The exception is upstream's: device plugins find the kubelet at
// /var/lib/kubelet/device-plugins.
func TestDirectories(t *testing.T) {
	t.Parallel()
	const kubeconfig = "/var/lib/moved/admin.yaml"
	// Unix sockets hold paths of 107 bytes.
	runDir := "/run/moved/" + strings.Repeat("long/", 38)[:189]
	dirs := []string{"--data-dir=/var/lib/moved/data", "--run-dir=" + runDir, "--kubelet-root-dir=/var/lib/moved/kubelet"}
	s := harness.New(t, harness.Options{Args: append([]string{"--write-kubeconfig=" + kubeconfig}, dirs...), NoTestImage: true})
	s.Launch(t)
	waitNode(t, s, kubeconfig)
	kubectl := []string{"kubectl", "--kubeconfig=" + kubeconfig}
	s.Exec(t, s.BinaryPath(), append(kubectl, "run", "web", "--image=kubelith/hello:1")...)
	s.Exec(t, s.BinaryPath(), append(kubectl, "wait", "--for=condition=Ready", "pod/web", harness.Timeout(60*time.Second))...)
	usual := []string{harness.DataDir, harness.RunDir, harness.AdminKubeconfig}
	for _, path := range usual {
		if exists(s, path) {
			t.Errorf("%s exists", path)
		}
	}
	if found, _ := os.ReadDir(s.Path("/var/lib/kubelet")); len(found) != 1 || found[0].Name() != "device-plugins" {
		t.Errorf("/var/lib/kubelet has %v", found)
	}
	if info, err := os.Stat(s.Path(kubeconfig)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig: %v, %v", info, err)
	}

	if list := s.Exec(t, s.BinaryPath(), append([]string{"plugin", "list"}, dirs[1])...); !strings.Contains(list, "kubelith-local") && !strings.Contains(list, "local") {
		t.Errorf("plugins: %s", list)
	}
	s.Exec(t, s.BinaryPath(), append(kubectl, "exec", "web", "--", "/hello", "get", "http://127.0.0.1:8080/")...)
	ctr := append([]string{"ctr"}, dirs...)
	pids := tasks(t, s.Exec(t, s.BinaryPath(), append(ctr, "tasks", "list")...))
	if len(pids) != 2 {
		t.Fatalf("a pod of one container has the processes %v", pids)
	}
	for _, dir := range []string{"/var/lib/moved/kubelet/pods/", runDir + "/containerd/"} {
		if !strings.Contains(s.Exec(t, "cat", "/proc/mounts"), " "+dir) {
			t.Errorf("nothing is mounted below %s", dir)
		}
	}
	s.Stop(t)
	s.Exec(t, s.BinaryPath(), append([]string{"reset", "--yes", "--data"}, dirs...)...)
	for _, pid := range pids {
		if harness.Alive(pid) {
			t.Errorf("process %d survived reset", pid)
		}
	}
	if links := s.Exec(t, "find", "/run", "-maxdepth", "1", "-type", "l", "-name", "kubelith-*"); links != "" {
		t.Errorf("left: %s", links)
	}
	var left snapshotHost
	left.take(t, s)
	if len(left.processes) > 0 {
		t.Errorf("processes: %v", left.processes)
	}
	if mounts := s.Exec(t, "cat", "/proc/mounts"); strings.Contains(mounts, "/moved/") {
		t.Errorf("mounts are left:\n%s", mounts)
	}
	for _, path := range append(usual, "/var/lib/moved/data", runDir, "/var/lib/moved/kubelet") {
		if exists(s, path) {
			t.Errorf("%s exists after reset", path)
		}
	}
}

// tasks are the process ids in the output of `ctr tasks list`.
func tasks(t *testing.T, list string) []int {
	t.Helper()
	var pids []int
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "RUNNING" {
			continue
		}
		pid, err := strconv.Atoi(fields[1])
		if err != nil {
			t.Fatalf("%v in\n%s", err, list)
		}
		pids = append(pids, pid)
	}
	return pids
}
