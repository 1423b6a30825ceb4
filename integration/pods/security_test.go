package pods

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestSecurityContext reads what the kernel says about the container's process.
func TestSecurityContext(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		sc    corev1.SecurityContext
		field string // of /proc/PID/status
		want  string // its first word
	}{
		{"seccomp-unasked", corev1.SecurityContext{}, "Seccomp", "2"},
		{"seccomp-default", corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}, "Seccomp", "2"},
		{"seccomp-off", corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}, "Seccomp", "0"},
		{"user", corev1.SecurityContext{RunAsUser: ptr(int64(1234))}, "Uid", "1234"},
		{"group", corev1.SecurityContext{RunAsUser: ptr(int64(1234)), RunAsGroup: ptr(int64(4321))}, "Gid", "4321"},
		{"capabilities", corev1.SecurityContext{Capabilities: &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE"},
		}}, "CapEff", "0000000000000400"},
		{"escalation-off", corev1.SecurityContext{AllowPrivilegeEscalation: ptr(false)}, "NoNewPrivs", "1"},
		{"escalation-on", corev1.SecurityContext{}, "NoNewPrivs", "0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			pod := harness.Pod(s.Namespace(t), "sec", "/bin/probe", "sleep")
			pod.Spec.Containers[0].SecurityContext = &tc.sc
			pod = s.Run(t, pod)
			got := harness.ProcStatus(t, s.ContainerPID(t, pod, "main"), tc.field)
			if first, _, _ := strings.Cut(got, "\t"); first != tc.want {
				t.Errorf("%s is %q, not %q", tc.field, got, tc.want)
			}
		})
	}
}

// TestPrivileged: a privileged container may mount, an ordinary one may not; a read-only root refuses writes.
func TestPrivileged(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		sc     corev1.SecurityContext
		script string
		ok     bool
	}{
		{"mount-privileged", corev1.SecurityContext{Privileged: ptr(true)}, "mount -t tmpfs tmpfs /mnt", true},
		{"mount-ordinary", corev1.SecurityContext{}, "mount -t tmpfs tmpfs /mnt", false},
		{"write-readonly", corev1.SecurityContext{ReadOnlyRootFilesystem: ptr(true)}, "touch /file", false},
		{"write-ordinary", corev1.SecurityContext{}, "touch /file", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			pod := harness.Pod(s.Namespace(t), "try", harness.Shell(tc.script)...)
			pod.Spec.Containers[0].SecurityContext = &tc.sc
			pod = s.RunToEnd(t, pod)
			if ok := pod.Status.Phase == corev1.PodSucceeded; ok != tc.ok {
				t.Errorf("phase %s: %s", pod.Status.Phase, s.PodLogs(t, pod, "main"))
			}
		})
	}
}

func TestRunAsNonRootIsEnforced(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	pod := harness.Pod(s.Namespace(t), "root", "/bin/probe", "sleep")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr(true)}
	s.WaitPod(t, s.Create(t, pod), "to be refused", waits("main", "CreateContainerConfigError"))
}

func TestSysctls(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "safe", "/bin/probe", "sleep")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{
		{Name: "net.ipv4.ip_unprivileged_port_start", Value: "77"},
		{Name: "kernel.shm_rmid_forced", Value: "1"},
	}}
	pod = s.Run(t, pod)
	if got := strings.Fields(s.PodExec(t, pod, "", "cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/kernel/shm_rmid_forced")); strings.Join(got, " ") != "77 1" {
		t.Errorf("the sysctls are %v", got)
	}

	unsafe := harness.Pod(ns, "unsafe", "/bin/probe", "sleep")
	unsafe.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn", Value: "100"}}}
	unsafe = s.RunToEnd(t, unsafe)
	if unsafe.Status.Reason != "SysctlForbidden" {
		t.Errorf("an unsafe sysctl: phase %s, reason %q", unsafe.Status.Phase, unsafe.Status.Reason)
	}
}

// TestNamespaces compares the Linux namespaces of the containers with each other's and the node's.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*corev1.PodSpec)
		node   []string // shared with the node
		pod    []string // shared by the pod's two containers
		own    []string // each container's own
	}{
		{"default", func(*corev1.PodSpec) {}, nil, []string{"net", "ipc", "uts"}, []string{"pid", "mnt"}},
		{"share-process", func(p *corev1.PodSpec) { p.ShareProcessNamespace = ptr(true) }, nil, []string{"net", "ipc", "pid"}, []string{"mnt"}},
		{"host-pid", func(p *corev1.PodSpec) { p.HostPID = true }, []string{"pid"}, []string{"net"}, []string{"mnt"}},
		{"host-network", func(p *corev1.PodSpec) { p.HostNetwork = true }, []string{"net"}, []string{"ipc"}, []string{"pid", "mnt"}},
		{"host-ipc", func(p *corev1.PodSpec) { p.HostIPC = true }, []string{"ipc"}, []string{"net"}, []string{"pid", "mnt"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			pod := harness.Pod(s.Namespace(t), "ns", "/bin/probe", "sleep")
			pod.Spec.Containers = append(pod.Spec.Containers, harness.Container("other", "/bin/probe", "sleep"))
			tc.change(&pod.Spec)
			pod = s.Run(t, pod)
			a, b, node := s.ContainerPID(t, pod, "main"), s.ContainerPID(t, pod, "other"), s.HolderPID()
			same := func(kind string, x, y int) bool {
				return harness.NamespaceOf(t, x, kind) == harness.NamespaceOf(t, y, kind)
			}
			for _, kind := range tc.node {
				if !same(kind, a, node) {
					t.Errorf("%s is not the node's", kind)
				}
			}
			for _, kind := range tc.pod {
				if !same(kind, a, b) {
					t.Errorf("%s is not shared in the pod", kind)
				}
				if same(kind, a, node) {
					t.Errorf("%s is the node's", kind)
				}
			}
			for _, kind := range tc.own {
				if same(kind, a, b) || same(kind, a, node) {
					t.Errorf("%s is not the container's own", kind)
				}
			}
		})
	}
}

// TestProcessesSeen: with a shared process namespace one container sees and signals the other's process.
func TestProcessesSeen(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	pod := harness.Pod(s.Namespace(t), "shared", "/bin/probe", "sleep")
	pod.Spec.ShareProcessNamespace = ptr(true)
	pod.Spec.Containers = append(pod.Spec.Containers, harness.Container("other", "sleep", "4321"))
	pod = s.Run(t, pod)
	victim := s.ContainerPID(t, pod, "other")
	s.PodExec(t, pod, "main", harness.Shell("kill -9 $(pidof sleep)")...)
	s.WaitPod(t, pod, "to lose its other container", func(p *corev1.Pod) error {
		if st := harness.Status(p, "other"); st.State.Terminated == nil || st.State.Terminated.ExitCode != 137 {
			return fmt.Errorf("%+v", st.State)
		}
		return nil
	})
	if harness.Alive(victim) {
		t.Errorf("process %d lives", victim)
	}
}

func TestRuntimeClass(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	classes := s.Client(t).NodeV1().RuntimeClasses()
	for name, handler := range map[string]string{ns + "-good": "runc", ns + "-bad": "no-such-runtime"} {
		if _, err := classes.Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.TryKubectl(t, "delete", "runtimeclass", name) })
	}
	good := harness.Pod(ns, "good", "/bin/probe", "sleep")
	good.Spec.RuntimeClassName = ptr(ns + "-good")
	s.Run(t, good)

	bad := harness.Pod(ns, "bad", "/bin/probe", "sleep")
	bad.Spec.RuntimeClassName = ptr(ns + "-bad")
	s.Create(t, bad)
	event(t, s, ns, "bad", "FailedCreatePodSandBox", strconv.Quote("no-such-runtime"))

	absent := harness.Pod(ns, "absent", "/bin/probe", "sleep")
	absent.Spec.RuntimeClassName = ptr(ns + "-absent")
	if _, err := s.Client(t).CoreV1().Pods(ns).Create(t.Context(), absent, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a pod of a RuntimeClass that does not exist: %v", err)
	}
}
