package nodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/integration/harness"
)

// volumeData is where the driver that comes with Kubelith keeps a volume on its node.
const volumeData = "/var/lib/kubelith/plugins/data/local/volumes"

// testVolumes: each node creates and expands its own volumes.
func testVolumes(t *testing.T, c *harness.Cluster, ns string) {
	client := c.Server.Client(t)
	harness.Eventually(t, harness.PodTimeout, "both kubelets to have the driver, and the scheduler to know the space of both", func() error {
		for _, n := range c.Nodes() {
			known, err := client.StorageV1().CSINodes().Get(t.Context(), n.NodeName(), metav1.GetOptions{})
			if err != nil || len(known.Spec.Drivers) != 1 {
				return fmt.Errorf("%+v, %v", known, err)
			}
		}
		space, err := client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(space.Items) != 2 {
			return fmt.Errorf("%d CSIStorageCapacities, %v", len(space.Items), err)
		}
		return nil
	})
	for _, n := range c.Nodes() {
		name := "on-" + n.NodeName()
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		}}
		if _, err := client.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Server.Create(t, on(n, withClaim(harness.Pod(ns, name, harness.Shell("hostname >/data/file; sleep 1000")...), name)))
	}
	for _, n := range c.Nodes() {
		name := "on-" + n.NodeName()
		pod := harness.Pod(ns, name)
		c.Server.WaitRunning(t, pod)
		volume := boundTo(t, c.Server, ns, name)
		file := n.Path(filepath.Join(volumeData, volume.Spec.CSI.VolumeHandle, "data/file"))
		harness.Eventually(t, harness.PodTimeout, "the file on "+n.NodeName(), func() error {
			text, err := os.ReadFile(file)
			if err == nil && strings.TrimSpace(string(text)) != name {
				err = fmt.Errorf("it has %q", text)
			}
			return err
		})
		patch := []byte(`{"spec":{"resources":{"requests":{"storage":"96Mi"}}}}`)
		if _, err := client.CoreV1().PersistentVolumeClaims(ns).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, harness.PodTimeout, "the volume to grow on "+n.NodeName(), func() error {
			grown, err := client.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), name, metav1.GetOptions{})
			if have := grown.Status.Capacity[corev1.ResourceStorage]; err == nil && have.Value() != 96<<20 {
				err = fmt.Errorf("it has %s: %+v", &have, grown.Status.Conditions)
			}
			return err
		})
	}
}

// testVolumesAfterRestart: an agent that was killed and started again deletes a volume that it has. Both nodes have
// left each other's alone.
func testVolumesAfterRestart(t *testing.T, c *harness.Cluster, ns string) {
	client, agent := c.Server.Client(t), c.Agents[0]
	name := "on-" + agent.NodeName()
	volume := boundTo(t, c.Server, ns, name)
	directory := agent.Path(filepath.Join(volumeData, volume.Spec.CSI.VolumeHandle))
	c.Server.Kubectl(t, "-n", ns, "delete", "pod", name, "--wait=true")
	c.Server.Kubectl(t, "-n", ns, "delete", "pvc", name, "--wait=true")
	harness.Eventually(t, harness.PodTimeout, "the volume of the agent to be gone", func() error {
		if _, err := client.CoreV1().PersistentVolumes().Get(t.Context(), volume.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("PersistentVolume: %v", err)
		}
		if _, err := os.Stat(directory); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %v", directory, err)
		}
		return nil
	})
	boundTo(t, c.Server, ns, "on-"+c.Server.NodeName())
	failed, err := client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=VolumeResizeFailed"})
	if err != nil || len(failed.Items) > 0 {
		t.Errorf("a node tried to resize another one's volume: %+v, %v", failed.Items, err)
	}
	if class, err := client.StorageV1().StorageClasses().Get(t.Context(), "local", metav1.GetOptions{}); err != nil || class.VolumeBindingMode == nil ||
		*class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		t.Errorf("%+v, %v", class, err)
	}
}

// testSpaceOfDeleted: what the scheduler knows of a node goes with its Node.
func testSpaceOfDeleted(t *testing.T, c *harness.Cluster) {
	client, agent := c.Server.Client(t), c.Agents[0]
	agent.Stop(t)
	if err := client.CoreV1().Nodes().Delete(t.Context(), agent.NodeName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.PodTimeout, "the space of the agent to be unknown", func() error {
		space, err := client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(space.Items) != 1 {
			return fmt.Errorf("%d CSIStorageCapacities, %v", len(space.Items), err)
		}
		if owners := space.Items[0].OwnerReferences; len(owners) != 1 || owners[0].Name != c.Server.NodeName() {
			return harness.Permanent(fmt.Errorf("the one that is left has the owners %+v", owners))
		}
		return nil
	})
}

// withClaim mounts a claim at /data.
func withClaim(pod *corev1.Pod, claim string) *corev1.Pod {
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return pod
}

// boundTo is the volume of a claim.
func boundTo(t *testing.T, s *harness.Server, ns, claim string) *corev1.PersistentVolume {
	t.Helper()
	c, err := s.Client(t).CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), claim, metav1.GetOptions{})
	if err != nil || c.Status.Phase != corev1.ClaimBound {
		t.Fatalf("claim %s: %v %+v", claim, err, c)
	}
	v, err := s.Client(t).CoreV1().PersistentVolumes().Get(t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}
