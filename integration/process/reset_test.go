package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

// TestReset: it asks first; then nothing of the server is left on the host, and what is not its own stays.
func TestReset(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	var pids []int
	for i := range 2 {
		pod := harness.Pod(ns, fmt.Sprintf("p%d", i), "/bin/probe", "serve")
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/mnt"}}
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: int32(18090 + i)}}
		pids = append(pids, s.ContainerPID(t, s.Run(t, pod), "main"))
	}
	_, err := s.Client(t).CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "p0"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "p0"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// What is not the server's own.
	s.Exec(t, "nft", "add", "table", "inet", "mine")
	s.Exec(t, "ip", "link", "add", "mine0", "type", "bridge")
	if err := os.MkdirAll(s.Path("/etc/cni/net.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path("/etc/cni/net.d/mine.conflist.off"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.Stop(t)

	var clean snapshotHost
	clean.take(t, s)
	if len(clean.mounts) == 0 || len(clean.links) < 4 || len(clean.tables) < 2 {
		t.Fatalf("before the reset there is too little to remove: %+v", clean)
	}
	no := s.BinaryCommand("reset", "--data")
	no.Stdin = strings.NewReader("n\n")
	out, err := no.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "nothing was changed") || !strings.Contains(string(out), "[y/N]") {
		t.Errorf("the answer n: %v\n%s", err, out)
	}
	var after snapshotHost
	after.take(t, s)
	if fmt.Sprint(after) != fmt.Sprint(clean) {
		t.Errorf("the answer n changed the host from\n%+v\nto\n%+v", clean, after)
	}
	for _, pid := range pids {
		if !harness.Alive(pid) {
			t.Errorf("the answer n ended process %d", pid)
		}
	}

	res := s.RunBinary(t, "reset", "--yes", "--data")
	if res.Code != 0 {
		t.Fatalf("exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	for _, pid := range pids {
		if harness.Alive(pid) {
			t.Errorf("process %d still runs", pid)
		}
	}
	after.take(t, s)
	if len(after.processes) > 0 {
		t.Errorf("processes: %v", after.processes)
	}
	if len(after.mounts) > 0 {
		t.Errorf("mounts: %v", after.mounts)
	}
	if got := strings.Join(after.links, " "); got != "eth0 lo mine0" {
		t.Errorf("interfaces: %s", got)
	}
	if got := strings.Join(after.tables, " "); got != "inet mine" {
		t.Errorf("nft tables: %s", got)
	}
	for _, path := range []string{harness.RunDir, harness.AdminKubeconfig, "/var/lib/kubelet"} {
		if exists(s, path) {
			t.Errorf("%s exists", path)
		}
	}
	// What was put there by us, as a user would, stays.
	if left := strings.Fields(s.Exec(t, "find", harness.DataDir, "-type", "f")); len(left) != 1 || left[0] != harness.TestImageArchive {
		t.Errorf("left in the data directory: %q", left)
	}
	if want := "left in " + harness.DataDir + ": agent/images\n"; !strings.Contains(res.Stdout, want) {
		t.Errorf("%q is not printed:\n%s", want, res.Stdout)
	}
	for _, pattern := range []string{"/var/log/pods/*", "/var/log/containers/*", "/run/netns/*", "/var/lib/cni/*/*"} {
		if found, _ := filepath.Glob(s.Path(pattern)); len(found) > 0 {
			t.Errorf("%s: %v", pattern, found)
		}
	}
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory"} {
		found, _ := filepath.Glob(dir + s.CgroupRoot() + "/kubepods*/*pod*")
		if len(found) > 0 {
			t.Errorf("cgroups: %v", found)
		}
	}
	if !exists(s, "/etc/cni/net.d/mine.conflist.off") {
		t.Error("a third party's file was removed")
	}
	if res := s.RunBinary(t, "reset", "--yes", "--data"); res.Code != 0 {
		t.Errorf("a second reset: exit code %d\n%s", res.Code, res.Stderr)
	}
	s.Launch(t) // on what is now a fresh host
	harness.Eventually(t, 60*time.Second, "a new cluster", func() error {
		if err := alive(s); err != nil {
			return err
		}
		if !exists(s, harness.AdminKubeconfig) {
			return errors.New("no kubeconfig yet")
		}
		nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err == nil && len(nodes.Items) != 1 {
			err = errors.New("no node yet")
		}
		return err
	})
	if res := s.TryKubectl(t, "get", "namespace", ns); res.Code == 0 {
		t.Error("the old cluster is still there")
	}
}

// snapshotHost is what a server leaves on a host, as the host's tools show it.
type snapshotHost struct {
	processes, mounts, links, tables []string
}

func (h *snapshotHost) take(t *testing.T, s *harness.Server) {
	t.Helper()
	*h = snapshotHost{}
	mntNS := harness.NamespaceOf(t, s.HolderPID(), "mnt")
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == s.HolderPID() {
			continue
		}
		if ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); ns == mntNS && harness.Alive(pid) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			h.processes = append(h.processes, fmt.Sprintf("%d %s", pid, strings.TrimSpace(string(name))))
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", s.HolderPID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		target := strings.Fields(line)[1]
		for _, dir := range []string{harness.DataDir, harness.RunDir, "/var/lib/kubelet"} {
			if target == dir || strings.HasPrefix(target, dir+"/") {
				h.mounts = append(h.mounts, target)
			}
		}
	}
	var links []struct{ Ifname string }
	if err := json.Unmarshal([]byte(s.Exec(t, "ip", "-j", "link")), &links); err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		h.links = append(h.links, l.Ifname)
	}
	slices.Sort(h.links)
	for line := range strings.Lines(s.Exec(t, "nft", "list", "tables")) {
		h.tables = append(h.tables, strings.TrimSpace(strings.TrimPrefix(line, "table ")))
	}
}
