package pods

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestSecurityContext reads what the kernel reports about the container's process.
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
		{"capabilities", corev1.SecurityContext{Capabilities: &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE"},
		}}, "CapEff", "0000000000000400"},
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

// TestUnsafeSysctl: the node has not allowed it.
func TestUnsafeSysctl(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	pod := harness.Pod(s.Namespace(t), "unsafe", "/bin/probe", "sleep")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn", Value: "100"}}}
	if pod = s.RunToEnd(t, pod); pod.Status.Reason != "SysctlForbidden" {
		t.Errorf("phase %s, reason %q", pod.Status.Phase, pod.Status.Reason)
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

// TestRuntimeClass: a pod whose RuntimeClass names no handler of the node does not start.
func TestRuntimeClass(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: ns}, Handler: "no-such-runtime"}
	if _, err := s.Client(t).NodeV1().RuntimeClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.TryKubectl(t, "delete", "runtimeclass", ns) })
	pod := harness.Pod(ns, "other", "/bin/probe", "sleep")
	pod.Spec.RuntimeClassName = &class.Name
	s.Create(t, pod)
	event(t, s, ns, "other", "FailedCreatePodSandBox", strconv.Quote(class.Handler))
}
