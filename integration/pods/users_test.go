package pods

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestOwnUsers: root of a pod with hostUsers: false is none on the node, and uses volumes of each kind as any root
// does.
func TestOwnUsers(t *testing.T) {
	t.Parallel()
	if limit, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || strings.TrimSpace(string(limit)) == "0" {
		t.Skipf("this kernel makes no user namespaces: %s, %v", limit, err)
	}
	s := cluster.Get(t)
	ns := s.Namespace(t)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
		},
	}
	if _, err := s.Client(t).CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := harness.Pod(ns, "own", "/bin/probe", "sleep")
	pod.Spec.HostUsers = ptr(false)
	pod.Spec.AutomountServiceAccountToken = ptr(true)
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}})
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}, {Name: "data", MountPath: "/data"}}
	pod = s.Run(t, pod)

	pid := s.ContainerPID(t, pod, "main")
	if harness.NamespaceOf(t, pid, "user") == harness.NamespaceOf(t, s.HolderPID(), "user") {
		t.Error("the user namespace is the node's")
	}
	for _, kind := range []string{"uid_map", "gid_map"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(string(text))
		if len(f) != 3 || f[0] != "0" || f[2] != "65536" {
			t.Fatalf("%s is %q", kind, text)
		}
		if outside, err := strconv.Atoi(f[1]); err != nil || outside < 65536 {
			t.Errorf("%s: root is %s on the node", kind, f[1])
		}
	}
	s.PodExec(t, pod, "", harness.Shell("echo written >/scratch/file && echo written >/data/file")...)
	got := s.PodExec(t, pod, "", harness.Shell("stat -c %u /scratch/file; stat -c %u /data/file; test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token")...)
	if strings.Join(strings.Fields(got), " ") != "0 0 token" {
		t.Errorf("owners of what root wrote, and the token: %q", got)
	}
	onNode := "/var/lib/kubelet/pods/" + string(pod.UID) + "/volumes/kubernetes.io~empty-dir/scratch/file"
	if text, err := os.ReadFile(s.Path(onNode)); err != nil || string(text) != "written\n" {
		t.Errorf("on the node: %q, %v", text, err)
	}
}

// TestRunDirForOthers: any user may traverse the run directory, for pods with user namespaces; only root reaches a
// socket in it, or reads a bundle.
func TestRunDirForOthers(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	s.Run(t, harness.Pod(s.Namespace(t), "bundle", "/bin/probe", "sleep"))
	root := s.Path(harness.RunDir)
	sockets := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // pods come and go
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		inside := harness.RunDir + strings.TrimPrefix(path, root)
		switch mode := info.Mode(); {
		case e.IsDir() && mode.Perm()&0o001 == 0:
			sockets += countSockets(path)
			return fs.SkipDir // only root gets in
		case e.IsDir() && mode.Perm()&0o002 != 0 && mode&fs.ModeSticky == 0:
			t.Errorf("%s is world-writable: %v", inside, mode)
		case mode&fs.ModeSocket != 0:
			sockets++
			if mode.Perm()&0o002 != 0 {
				t.Errorf("any user may connect to %s: %v", inside, mode)
			}
		case mode.IsRegular() && e.Name() == "config.json" && mode.Perm()&0o004 != 0:
			t.Errorf("everybody may read the environment of a container in %s: %v", inside, mode)
		}
		if e.Name() == "rootfs" {
			return fs.SkipDir // the container's own files
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sockets < 3 { // etcd's, containerd's, that of the plugins
		t.Errorf("only %d sockets were found", sockets)
	}
}

func countSockets(dir string) (n int) {
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSocket != 0 {
			n++
		}
		return nil
	})
	return n
}
