package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/integration/harness"
)

// TestSandboxProcess: the process that holds a pod's namespaces has no rights and nothing to see, whatever the pod
// shares with the node, and the namespaces are those that the pod asked for.
func TestSandboxProcess(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	for name, c := range map[string]struct {
		change func(*corev1.PodSpec)
		shared []string // with the node
		user   string
	}{
		"plain":  {func(*corev1.PodSpec) {}, nil, "65535"},
		"net":    {func(p *corev1.PodSpec) { p.HostNetwork = true }, []string{"net", "uts"}, "65535"},
		"pid":    {func(p *corev1.PodSpec) { p.HostPID = true }, []string{"pid"}, "65535"},
		"ipc":    {func(p *corev1.PodSpec) { p.HostIPC = true }, []string{"ipc"}, "65535"},
		"shared": {func(p *corev1.PodSpec) { p.ShareProcessNamespace = ptr(true) }, nil, "65535"},
		"privileged": {func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
		}, nil, "65535"},
		"root": {func(p *corev1.PodSpec) { p.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr(int64(0))} }, nil, "0"},
		"user-groups": {func(p *corev1.PodSpec) {
			p.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr(int64(7)), RunAsGroup: ptr(int64(8)), SupplementalGroups: []int64{9}}
		}, nil, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := harness.Pod(ns, name, "/bin/probe", "sleep")
			c.change(&pod.Spec)
			pod = s.Run(t, pod)
			pid := s.SandboxPID(t, pod)
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || filepath.Base(exe) != names.PauseProgram {
				t.Errorf("the program is %s, %v, want %s", exe, err, names.PauseProgram)
			}
			for _, field := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
				if got := harness.ProcStatus(t, pid, field); strings.Trim(got, "0") != "" {
					t.Errorf("%s = %s, want none", field, got)
				}
			}
			for field, want := range map[string]string{
				"NoNewPrivs": "1", "Seccomp": "2", "Uid": strings.TrimSpace(strings.Repeat(c.user+"\t", 4)),
			} {
				if got := harness.ProcStatus(t, pid, field); got != want {
					t.Errorf("%s = %s, want %s", field, got, want)
				}
			}
			if name == "user-groups" {
				if gid := harness.ProcStatus(t, pid, "Gid"); gid != "8\t8\t8\t8" {
					t.Errorf("Gid %s, want 8", gid)
				}
			}
			root := fmt.Sprintf("/proc/%d/root", pid)
			if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
				t.Errorf("its root directory has %v, %v, want nothing", entries, err)
			}
			if err := os.WriteFile(root+"/file", nil, 0o600); err == nil {
				t.Error("its root directory can be written")
			}
			if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid)); err != nil || strings.Count(string(mounts), "\n") != 1 {
				t.Errorf("it has the mounts %s, %v, want one", mounts, err)
			}
			for _, kind := range []string{"net", "uts", "pid", "ipc", "mnt"} {
				of, node := harness.NamespaceOf(t, pid, kind), harness.NamespaceOf(t, s.PID(), kind)
				if want := strings.Contains(strings.Join(c.shared, " "), kind); want != (of == node) {
					t.Errorf("the %s namespace is %s, the node's %s, want them to be equal: %v", kind, of, node, want)
				}
			}
			if group := harness.CgroupDir(t, pid, "memory"); !strings.Contains(group, string(pod.UID)) && !strings.Contains(group, strings.ReplaceAll(string(pod.UID), "-", "_")) {
				t.Errorf("its cgroup %s is not of the pod %s", group, pod.UID)
			}
			for fd := range 16 { // the descriptors of its settings and those that the server inherited are closed
				if link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err == nil && link != "/dev/null" {
					t.Errorf("file descriptor %d is %s", fd, link)
				}
			}
			group := harness.CgroupDir(t, pid, "memory")
			s.Kubectl(t, "delete", "pod", "-n", ns, name)
			if harness.Alive(pid) {
				t.Error("the sandbox's process lives longer than its pod")
			}
			if _, err := os.Stat(group); err == nil {
				t.Errorf("the cgroup %s is still there", group)
			}
		})
	}
}

// TestSandboxSettings: sysctls, the host name and the reaping of orphans, which are the sandbox's work.
func TestSandboxSettings(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "settings", "/bin/probe", "sleep")
	pod.Spec.Hostname = "named"
	pod.Spec.ShareProcessNamespace = ptr(true)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{
		{Name: "kernel.shm_rmid_forced", Value: "1"}, {Name: "net.ipv4.ip_local_port_range", Value: "40000 50000"},
	}}
	pod = s.Run(t, pod)
	got := s.PodExec(t, pod, "", harness.Shell("cat /proc/sys/kernel/hostname /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_local_port_range")...)
	if strings.Join(strings.Fields(got), " ") != "named 1 40000 50000" {
		t.Errorf("host name and sysctls are %q", got)
	}
	// A process whose parent ends becomes the sandbox's, which is pid 1.
	s.PodExec(t, pod, "", harness.Shell("/bin/sh -c '/bin/probe true & /bin/probe true & exit 0'; exit 0")...)
	pid := s.SandboxPID(t, pod)
	harness.Eventually(t, harness.PodTimeout, "no zombie to be left in the pod", func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			return err
		}
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil && !harness.Alive(n) {
				return fmt.Errorf("process %d is a zombie", n)
			}
		}
		return nil
	})
	if !harness.Alive(pid) {
		t.Error("the sandbox's process has ended")
	}
}
