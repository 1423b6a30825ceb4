package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/procstat"
	"kubelith.io/kubelith/host/sandbox"
)

// ContainerPID returns the process id, on the host, of the first process of a running container. The pod must carry its
// status, as WaitPod and Run return it.
func (s *Server) ContainerPID(t testing.TB, pod *corev1.Pod, container string) int {
	t.Helper()
	status := Status(pod, container)
	if status == nil || status.ContainerID == "" {
		t.Fatalf("pod %s has no container %s with an id", pod.Name, container)
	}
	_, id, _ := strings.Cut(status.ContainerID, "://")
	pid, err := s.TaskPID(id)
	if err != nil {
		t.Fatalf("container %s of pod %s: %v", container, pod.Name, err)
	}
	return pid
}

// SandboxPID returns the process id, on the host, of the process that holds the namespaces of a running pod, whose
// container main has a status.
func (s *Server) SandboxPID(t testing.TB, pod *corev1.Pod) int {
	t.Helper()
	status := Status(pod, "main")
	if status == nil {
		t.Fatalf("pod %s has no container main", pod.Name)
	}
	_, id, _ := strings.Cut(status.ContainerID, "://")
	content, err := os.ReadFile(s.Path(bundles + id + "/config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var spec struct{ Annotations map[string]string }
	if err := json.Unmarshal(content, &spec); err != nil {
		t.Fatal(err)
	}
	pid, err := s.TaskPID(spec.Annotations["io.kubernetes.cri.sandbox-id"])
	if err != nil {
		t.Fatalf("sandbox of pod %s: %v", pod.Name, err)
	}
	return pid
}

// bundles has a directory for each sandbox and container.
const bundles = RunDir + "/containerd/io.kubelith.tasks/k8s.io/"

// TaskPID returns the process id of a container or a pod sandbox, which is in a file of its bundle.
func (s *Server) TaskPID(id string) (int, error) {
	content, err := os.ReadFile(s.Path(bundles + id + "/init.pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// StartTime identifies a process together with its pid, in clock ticks since boot.
func StartTime(t testing.TB, pid int) uint64 {
	t.Helper()
	return stat(t, pid).Start
}

func stat(t testing.TB, pid int) *procstat.Stat {
	t.Helper()
	s, err := procstat.Read(pid)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	return s
}

// Alive reports whether a process exists and is no zombie.
func Alive(pid int) bool { return !sandbox.Zombie(pid) }

// ProcStatus returns a field of /proc/PID/status, such as Seccomp, CapEff, Uid or NSpid.
func ProcStatus(t testing.TB, pid int, field string) string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("process %d has no field %s", pid, field)
	return ""
}

// NamespaceOf returns the identity of a process's Linux namespace (net, mnt, pid, ipc, uts, user, cgroup).
func NamespaceOf(t testing.TB, pid int, kind string) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	return link
}
