package local

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClassName of the StorageClass for claims that name none.
const ClassName = "local"

// CSIDriver tells Kubernetes how to treat the driver.
func CSIDriver() *storagev1.CSIDriver {
	attach, podInfo, capacity, policy := false, false, true, storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{
		// What lets agents make volumes, on themselves: docs/adr/024.
		ObjectMeta: metav1.ObjectMeta{Name: Name, Annotations: map[string]string{"kubelith.io/node-local": topologyKey}},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       &attach,   // a directory is where it is
			PodInfoOnMount:       &podInfo,  // every pod gets the same
			StorageCapacity:      &capacity, // the scheduler looks for a node with room
			FSGroupPolicy:        &policy,   // the kubelet gives the files to the pod's group
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}

// StorageClass that is the cluster's default: the volume is made on the node that the scheduler has chosen for its first pod.
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
