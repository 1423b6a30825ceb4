package plugins

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

// podDriver is the driver of ./thirdparty.
const podDriver = "thirdparty.example.com"

// testDriverInPods: a CSI driver that runs as a pod with the work of the usual sidecars keeps working beside ours.
func testDriverInPods(t *testing.T, s *harness.Server) {
	// Its image is the test image with the program mounted into it.
	install(t, s, harness.BuildProgram(t, "./thirdparty"), "/opt/thirdparty")
	ns := s.Namespace(t)
	createDriver(t, s, ns)
	driver := s.Run(t, driverPod(ns))
	harness.Eventually(t, harness.PodTimeout, "the kubelet to know the driver", func() error {
		return knows(t, s, driver.Spec.NodeName, podDriver)
	})
	createClaim(t, s, claim(ns, "theirs", podDriver, "64Mi"))
	createClaim(t, s, claim(ns, "ours", "", "64Mi"))
	pod := podWith(ns, "both", "theirs", "", harness.Shell("echo theirs >/data/file; echo ours >/ours/file; sleep 1000")...)
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "ours", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "ours"},
	}})
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "ours", MountPath: "/ours"})
	pod = s.Run(t, pod)
	for name, want := range map[string]string{"theirs": podDriver, "ours": localDriver} {
		if got := volumeOf(t, s, ns, name).Spec.CSI.Driver; got != want {
			t.Errorf("%s was made by %s", name, got)
		}
	}
	handle := volumeOf(t, s, ns, "theirs").Spec.CSI.VolumeHandle
	directory := s.Path(filepath.Join("/var/lib/thirdparty/volumes", handle))
	harness.Eventually(t, harness.PodTimeout, "the pod to have written", func() error {
		_, err := os.Stat(filepath.Join(directory, "data/file"))
		return err
	})
	checkMounts(t, s, pod, volumeOf(t, s, ns, "theirs").Name, volumeOf(t, s, ns, "ours").Name)
	deletePod(t, s, pod)
	deleteClaims(t, s, ns, "theirs", "ours")
	harness.Eventually(t, harness.PodTimeout, "its volume to be gone", func() error {
		if _, err := os.Stat(directory); err == nil {
			return os.ErrExist
		}
		return nil
	})
}

// checkMounts: the trace of a pod has how each of its volumes was mounted, once: for the driver in a pod what the
// kubelet does with it, for ours the calls.
func checkMounts(t *testing.T, s *harness.Server, pod *corev1.Pod, theirs, ours string) {
	t.Helper()
	res := s.RunBinary(t, "trace", "pod/"+pod.Name, "-n", pod.Namespace, "-o", "json")
	var timeline trace.Timeline
	if err := json.Unmarshal([]byte(res.Stdout), &timeline); err != nil {
		t.Fatalf("kubelith trace: %v\n%s%s", err, res.Stdout, res.Stderr)
	}
	got := map[string][]string{}
	for _, span := range timeline.Spans {
		if span.Stage == record.Volume && span.Object.UID == string(pod.UID) && span.Error == "" {
			got[span.Message] = append(got[span.Message], span.By+" "+span.Name)
		}
	}
	want := map[string][]string{
		theirs: {podDriver + " MountDevice", podDriver + " SetUp"},
		ours:   {localDriver + " NodeStageVolume", localDriver + " NodePublishVolume"},
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the trace has the volumes %q, want %q", got, want)
	}
	if text := s.RunBinary(t, "trace", "pod/"+pod.Name, "-n", pod.Namespace).Stdout; !strings.Contains(text, "volume SetUp") {
		t.Errorf("the trace does not show the driver in a pod:\n%s", text)
	} else {
		t.Log(text)
	}
}

// createDriver creates the objects that a driver's manifests have.
func createDriver(t *testing.T, s *harness.Server, ns string) {
	t.Helper()
	client, ctx, no := s.Client(t), t.Context(), false
	policy := storagev1.FileFSGroupPolicy
	_, err := client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: podDriver},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &no, FSGroupPolicy: &policy},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: podDriver}, Provisioner: podDriver,
		Parameters: map[string]string{"enforcement": "none"}, // its image has no mkfs.ext4
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: podDriver},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "default"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// driverPod is what a DaemonSet of the driver creates.
func driverPod(ns string) *corev1.Pod {
	pod := harness.Pod(ns, "driver", "/opt/thirdparty")
	yes, both := true, corev1.MountPropagationBidirectional
	kind := map[string]corev1.HostPathType{"/opt/thirdparty": corev1.HostPathFile, "/var/lib/kubelet": corev1.HostPathDirectory, "/var/lib/thirdparty": corev1.HostPathDirectoryOrCreate}
	c := &pod.Spec.Containers[0]
	c.SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	c.Env = []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}
	for path, is := range kind {
		name := filepath.Base(path)
		if is == corev1.HostPathFile {
			name = "program"
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &is}}})
		mount := corev1.VolumeMount{Name: name, MountPath: path}
		if path == "/var/lib/kubelet" {
			mount.MountPropagation = &both
		}
		c.VolumeMounts = append(c.VolumeMounts, mount)
	}
	return pod
}

// knows returns nil if the kubelet has registered a driver.
func knows(t *testing.T, s *harness.Server, node, driver string) error {
	n, err := s.Client(t).StorageV1().CSINodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, d := range n.Spec.Drivers {
		if d.Name == driver {
			return nil
		}
	}
	return os.ErrNotExist
}
