package nodes

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/examples/fuse/store/storetest"
)

// testFUSEVolume: pods of two nodes use a volume at the same time, each node with its own client pod, and read what the
// other writes. The volume is a PersistentVolume of objects that exist.
func testFUSEVolume(t *testing.T, c *harness.Cluster) {
	s := c.Server
	listener, err := net.Listen("tcp", net.JoinHostPort(s.HostIP, "0"))
	if err != nil {
		t.Fatal(err)
	}
	objects := &storetest.Server{}
	server := &http.Server{Handler: objects}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	objects.Set("pictures/old", "was there\n")

	program := harness.BuildProgram(t, "../../plugins/examples/fuse")
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range c.Nodes() {
		if out, err := exec.Command(program, "image", node.Path("/var/lib/fuse-image.tar")).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if res := node.RunBinary(t, "ctr", "-n", "k8s.io", "images", "import", "/var/lib/fuse-image.tar"); res.Code != 0 {
			t.Fatal(res.Stderr)
		}
		if err := os.MkdirAll(node.Path("/var/lib/kubelith/plugins/storage"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(node.Path("/var/lib/kubelith/plugins/storage/fuse"), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	manifest, err := os.ReadFile("../../plugins/examples/fuse/manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.KubectlInput(t, string(manifest), "apply", "-f", "-")
	s.Kubectl(t, "-n", "kubelith-fuse", "create", "secret", "generic", "store", "--from-literal=endpoint=http://"+listener.Addr().String(),
		"--from-literal=bucket="+storetest.Bucket, "--from-literal=access-key=a", "--from-literal=secret-key=b")

	ns, none := c.Namespace(t), ""
	secret := &corev1.SecretReference{Name: "store", Namespace: "kubelith-fuse"}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pictures"}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: modes, Capacity: size, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, MountOptions: []string{"umask=022", "noatime"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: "fuse.kubelith.io", VolumeHandle: "pictures", VolumeAttributes: map[string]string{"path": "pictures"}, ControllerPublishSecretRef: secret,
		}},
	}}
	if _, err := s.Client(t).CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}, VolumeName: "pictures", StorageClassName: &none,
	}}
	if _, err := s.Client(t).CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pods []*corev1.Pod
	for i, node := range c.Nodes() {
		pod := on(node, harness.Pod(ns, fmt.Sprint("pod-", i), "sleep", "1000"))
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		pods = append(pods, s.Create(t, pod))
	}
	for i := range pods {
		pods[i] = s.WaitRunning(t, pods[i])
	}
	for i, pod := range pods {
		if got := s.PodExec(t, pod, "main", "cat", "/data/old"); got != "was there\n" {
			t.Errorf("%s reads %q", pod.Name, got)
		}
		s.PodExec(t, pod, "main", "/bin/sh", "-c", "echo from "+pod.Name+" >/data/new")
		harness.Eventually(t, harness.PodTimeout, "the other pod to read it", func() error {
			if got, stderr, err := s.TryPodExec(t, pods[1-i], "main", "cat", "/data/new"); err != nil || got != "from "+pod.Name+"\n" {
				return fmt.Errorf("%q, %v, %s", got, err, stderr)
			}
			return nil
		})
	}
	if got := s.PodExec(t, pods[0], "main", "mount"); !strings.Contains(got, "kubelith:pictures on /data type fuse.kubelith (rw,nosuid,nodev,noatime,") {
		t.Errorf("the mount options are in %s", got)
	}
	clients, err := s.Client(t).CoreV1().Pods("kubelith-fuse").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(clients.Items) != 2 || clients.Items[0].Spec.NodeName == clients.Items[1].Spec.NodeName {
		t.Errorf("%d client pods, %v; want one on each node", len(clients.Items), err)
	}
	s.Kubectl(t, "-n", ns, "delete", "pod", "--all", "--grace-period=1")
	if got, _ := objects.Get("pictures/new"); got != "from pod-1\n" {
		t.Errorf("the object has %q", got)
	}
	// The store ends with this test, and the next one kills the agent.
	harness.Eventually(t, harness.PodTimeout, "both nodes to have unmounted the volume", func() error {
		left, err := s.Client(t).StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d VolumeAttachments are left", len(left.Items))
		}
		return err
	})
}
