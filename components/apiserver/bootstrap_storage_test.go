package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/components/client"
)

// TestStorageIdentity: the controllers of storage plugins have the rights of the sidecars and no others, on the server and as a node's.
func TestStorageIdentity(t *testing.T) {
	ns := namespace(t, "storage-identity")
	ctx, none := t.Context(), metav1.ListOptions{}
	asNode := serve(t).NodeConfig("of-storage")
	asNode.Impersonate = rest.ImpersonationConfig{UserName: client.Storage}
	for name, cs := range map[string]kubernetes.Interface{"server": clientFor(t, serve(t).Config(client.Storage)), "agent": clientFor(t, asNode)} {
		t.Run(name, func(t *testing.T) {
			volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "of-" + name}, Spec: corev1.PersistentVolumeSpec{
				Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "a.example.com", VolumeHandle: "x"}},
			}}
			eventually(t, "make a volume", func() error {
				_, err := cs.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
				return err
			})
			capacity := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: "of-" + name}, StorageClassName: "a"}
			for what, f := range map[string]func() error{
				"read claims":   func() error { _, err := cs.CoreV1().PersistentVolumeClaims("").List(ctx, none); return err },
				"delete it":     func() error { return cs.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{}) },
				"read CSINodes": func() error { _, err := cs.StorageV1().CSINodes().List(ctx, none); return err },
				"make a CSIDriver": func() error {
					_, err := cs.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name + ".example.com"}}, metav1.CreateOptions{})
					return err
				},
				"tell the space": func() error {
					_, err := cs.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).Create(ctx, capacity, metav1.CreateOptions{})
					return err
				},
			} {
				if err := f(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			for what, f := range map[string]func() error{
				"reads Secrets": func() error { _, err := cs.CoreV1().Secrets("").List(ctx, none); return err },
				"makes a pod": func() error {
					_, err := cs.CoreV1().Pods(ns).Create(ctx, pod("x", ""), metav1.CreateOptions{})
					return err
				},
				"makes a claim": func() error {
					_, err := cs.CoreV1().PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{}, metav1.CreateOptions{})
					return err
				},
				"removes a driver": func() error {
					return cs.StorageV1().CSIDrivers().Delete(ctx, name+".example.com", metav1.DeleteOptions{})
				},
				"writes elsewhere": func() error {
					_, err := cs.StorageV1().CSIStorageCapacities(ns).Create(ctx, capacity, metav1.CreateOptions{})
					return err
				},
			} {
				if err := f(); !apierrors.IsForbidden(err) {
					t.Errorf("the identity %s: %v", what, err)
				}
			}
		})
	}
	asNode.Impersonate.Groups = []string{"system:masters"}
	if _, err := clientFor(t, asNode).CoreV1().Secrets("").List(ctx, none); !apierrors.IsForbidden(err) {
		t.Errorf("a node acts as a master: %v", err)
	}
	asNode.Impersonate = rest.ImpersonationConfig{UserName: client.Manifests}
	if _, err := clientFor(t, asNode).CoreV1().Secrets("").List(ctx, none); !apierrors.IsForbidden(err) {
		t.Errorf("a node acts as another identity of ours: %v", err)
	}
}
