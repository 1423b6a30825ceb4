package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

// TestStorageIdentity: the controllers of storage plugins have the rights of the sidecars and no others.
func TestStorageIdentity(t *testing.T) {
	ns := namespace(t, "storage-identity")
	ctx, none := t.Context(), metav1.ListOptions{}
	cs := clientFor(t, serve(t).Config(client.Storage))
	volume := csiVolume("of-server", "a.example.com")
	eventually(t, "create a volume", func() error {
		_, err := cs.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
		return err
	})
	capacity := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: "of-server"}, StorageClassName: "a"}
	for what, f := range map[string]func() error{
		"read claims":   func() error { _, err := cs.CoreV1().PersistentVolumeClaims("").List(ctx, none); return err },
		"delete it":     func() error { return cs.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{}) },
		"read CSINodes": func() error { _, err := cs.StorageV1().CSINodes().List(ctx, none); return err },
		"create a CSIDriver": func() error {
			_, err := cs.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "server.example.com"}}, metav1.CreateOptions{})
			return err
		},
		"report the capacity": func() error {
			_, err := cs.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).Create(ctx, capacity, metav1.CreateOptions{})
			return err
		},
	} {
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused(t, beyondStorage(t, cs, ns, "server.example.com"))
}

// TestStorageIdentityOfNodes: a node acts as the storage controllers on itself, which have fewer rights than the
// server's, and use them on volumes of their node alone.
func TestStorageIdentityOfNodes(t *testing.T) {
	ns := namespace(t, "storage-of-nodes")
	ctx, none := t.Context(), metav1.ListOptions{}
	const driver, key = "node-local.example.com", "topology.node-local.example.com/node"
	acting := func(user string, groups ...string) kubernetes.Interface {
		c := serve(t).NodeConfig("of-storage")
		c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		return clientFor(t, c)
	}
	server, cs := clientFor(t, serve(t).Config(client.Storage)), acting(client.StorageNodePrefix+"of-storage", client.StorageNodes)
	eventually(t, "create the driver and a class", func() error {
		_, err := server.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver, Annotations: map[string]string{names.NodeLocalAnnotation: key}}}, metav1.CreateOptions{})
		return err
	})
	if _, err := server.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: ns}, Provisioner: driver}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim, err := admin(t).CoreV1().PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &ns, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "volume.kubernetes.io/selected-node", "of-storage")
	eventually(t, "take the claim", func() error {
		_, err := cs.CoreV1().PersistentVolumeClaims(ns).Update(ctx, claim, metav1.UpdateOptions{})
		return err
	})
	on := func(node string) *corev1.PersistentVolume {
		v := csiVolume("on-"+node, driver)
		v.Spec.StorageClassName, v.Spec.PersistentVolumeReclaimPolicy = ns, corev1.PersistentVolumeReclaimDelete
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ns, Name: "c", UID: claim.UID}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
		return v
	}
	if _, err := server.CoreV1().PersistentVolumes().Create(ctx, on("another"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	more := func(name string, c *corev1.PersistentVolume) func() error {
		return func() error {
			c.Name = name
			_, err := cs.CoreV1().PersistentVolumes().Create(ctx, c, metav1.CreateOptions{})
			return err
		}
	}
	hostPath := on("of-storage")
	hostPath.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
	attacks := beyondStorage(t, cs, ns, driver)
	attacks["creates a volume elsewhere"] = more("x", on("another"))
	attacks["creates a hostPath volume"] = more("x", hostPath)
	attacks["deletes another node's volume"] = func() error { return cs.CoreV1().PersistentVolumes().Delete(ctx, "on-another", metav1.DeleteOptions{}) }
	attacks["changes another node's volume"] = func() error {
		_, err := cs.CoreV1().PersistentVolumes().Patch(ctx, "on-another", types.MergePatchType, []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"},"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
		return err
	}
	attacks["reads pods"] = func() error { _, err := cs.CoreV1().Pods("").List(ctx, none); return err }
	attacks["creates a CSIDriver"] = func() error {
		_, err := cs.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "x.example.com"}}, metav1.CreateOptions{})
		return err
	}
	attacks["changes a CSIDriver"] = func() error {
		_, err := cs.StorageV1().CSIDrivers().Patch(ctx, driver, types.MergePatchType, []byte(`{"spec":{"attachRequired":true}}`), metav1.PatchOptions{})
		return err
	}
	attacks["creates a StorageClass"] = func() error {
		_, err := cs.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Provisioner: driver}, metav1.CreateOptions{})
		return err
	}
	refused(t, attacks)

	for _, f := range []func() error{
		more("on-of-storage", on("of-storage")),
		func() error {
			return cs.CoreV1().PersistentVolumes().Delete(ctx, "on-of-storage", metav1.DeleteOptions{})
		},
	} {
		if err := f(); err != nil {
			t.Errorf("its own volume: %v", err)
		}
	}
	for what, other := range map[string]kubernetes.Interface{
		"the server's storage controllers": acting(client.Storage),
		"those of another node":            acting(client.StorageNodePrefix + "another"),
		"itself in their group":            acting("system:node:of-storage", client.StorageNodes),
		"a master":                         acting(client.StorageNodePrefix+"of-storage", "system:masters"),
		"another of our identities":        acting(client.Manifests),
	} {
		if _, err := other.CoreV1().PersistentVolumes().List(ctx, none); !apierrors.IsForbidden(err) {
			t.Errorf("a node acts as %s: %v", what, err)
		}
	}
}

// csiVolume is a volume of a driver.
func csiVolume(name, driver string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "x"}},
	}}
}

// beyondStorage is what no storage controller may do.
func beyondStorage(t *testing.T, cs kubernetes.Interface, ns, driver string) map[string]func() error {
	ctx := t.Context()
	return map[string]func() error{
		"reads Secrets": func() error { _, err := cs.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); return err },
		"creates a pod": func() error {
			_, err := cs.CoreV1().Pods(ns).Create(ctx, pod("x", ""), metav1.CreateOptions{})
			return err
		},
		"creates a claim": func() error {
			_, err := cs.CoreV1().PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{}, metav1.CreateOptions{})
			return err
		},
		"removes a driver": func() error { return cs.StorageV1().CSIDrivers().Delete(ctx, driver, metav1.DeleteOptions{}) },
		"writes elsewhere": func() error {
			c := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: "x"}, StorageClassName: "a"}
			_, err := cs.StorageV1().CSIStorageCapacities(ns).Create(ctx, c, metav1.CreateOptions{})
			return err
		},
	}
}

func refused(t *testing.T, attacks map[string]func() error) {
	t.Helper()
	for what, f := range attacks {
		if err := f(); !apierrors.IsForbidden(err) {
			t.Errorf("the identity %s: %v", what, err)
		}
	}
}
