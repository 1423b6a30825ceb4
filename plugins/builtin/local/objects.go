package local

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/names"
)

// ClassName is the name of the default StorageClass.
const ClassName = "local"

// CSIDriver tells Kubernetes how to treat the driver.
func CSIDriver() *storagev1.CSIDriver {
	attach, podInfo, capacity, policy := false, false, true, storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{
		// Lets agents create volumes on themselves, see docs/adr/024.
		ObjectMeta: metav1.ObjectMeta{Name: Name, Annotations: map[string]string{names.NodeLocalAnnotation: topologyKey}},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       &attach,   // nothing to attach: volumes are local
			PodInfoOnMount:       &podInfo,  // pods make no difference
			StorageCapacity:      &capacity, // the scheduler picks a node with enough space
			FSGroupPolicy:        &policy,   // the kubelet changes the files' group to the pod's
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}

// StorageClass returns the cluster's default StorageClass. Volumes are created on the node that the scheduler chose for
// the first pod.
func StorageClass() *storagev1.StorageClass {
	bind, reclaim, expand := storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimDelete, true
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        ClassName,
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner:          Name,
		VolumeBindingMode:    &bind,
		ReclaimPolicy:        &reclaim,
		AllowVolumeExpansion: &expand,
	}
}
