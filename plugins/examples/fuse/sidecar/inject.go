package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/plugins/examples/fuse/driver"
	"kubelith.io/kubelith/plugins/sdk"
)

const (
	// buffers is the volume for what is not uploaded yet. It counts as the pod's.
	buffers = driver.SidecarVolume + "-buffers"
	// user of the client, who has no rights.
	user = 65532
)

type injector struct {
	settings
	client kubernetes.Interface
}

func (i *injector) inject(ctx context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
	pod, err := sdk.Object[corev1.Pod](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return sdk.Allow()
	}
	needs, err := i.needs(ctx, r.Namespace, pod)
	if err != nil {
		return sdk.Fail(err)
	}
	if !needs {
		return sdk.Allow()
	}
	changed := pod.DeepCopy()
	if err := i.add(&changed.Spec); err != nil {
		return sdk.Deny(err.Error())
	}
	return sdk.Patch(r, changed)
}

// needs reports whether a pod uses a volume of the mode sidecar.
func (i *injector) needs(ctx context.Context, namespace string, pod *corev1.Pod) (bool, error) {
	for _, v := range pod.Spec.Volumes {
		var spec *corev1.PersistentVolumeClaimSpec
		switch {
		case v.PersistentVolumeClaim != nil:
			claim, err := i.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue // not known yet; a pod that needed it gets the driver's error
			}
			if err != nil {
				return false, err
			}
			spec = &claim.Spec
		case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
			spec = &v.Ephemeral.VolumeClaimTemplate.Spec
		default:
			continue
		}
		if needs, err := i.isSidecar(ctx, spec); needs || err != nil {
			return needs, err
		}
	}
	return false, nil
}

// isSidecar reports whether the volume of a claim has the mode sidecar.
func (i *injector) isSidecar(ctx context.Context, claim *corev1.PersistentVolumeClaimSpec) (bool, error) {
	if claim.VolumeName != "" {
		volume, err := i.client.CoreV1().PersistentVolumes().Get(ctx, claim.VolumeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		csi := volume.Spec.CSI
		return csi != nil && csi.Driver == driver.Name && driver.IsSidecar(csi.VolumeAttributes), nil
	}
	if ptr.Deref(claim.StorageClassName, "") == "" {
		return false, nil
	}
	class, err := i.client.StorageV1().StorageClasses().Get(ctx, *claim.StorageClassName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return class.Provisioner == driver.Name && driver.IsSidecar(class.Parameters), nil
}

// add the client to a pod, before its other containers. It is no error if it is there.
func (i *injector) add(pod *corev1.PodSpec) error {
	container, volumes := i.container(), i.volumes()
	all := slices.Concat(pod.InitContainers, pod.Containers)
	if at := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == container.Name }); at >= 0 {
		if have := all[at]; have.Image == container.Image && equality.Semantic.DeepEqual(have.Command, container.Command) {
			return nil
		}
		return fmt.Errorf("the container %s is the plugin's fuse-sidecar: remove it from the pod", container.Name)
	}
	for _, v := range volumes {
		if slices.ContainsFunc(pod.Volumes, func(have corev1.Volume) bool { return have.Name == v.Name }) {
			return errors.New("the volume " + v.Name + " is the plugin's fuse-sidecar: remove it from the pod")
		}
	}
	pod.InitContainers = slices.Insert(pod.InitContainers, 0, container)
	pod.Volumes = append(pod.Volumes, volumes...)
	return nil
}

// container is the client. It starts before all others, ends after them, and needs no rights: the driver has mounted
// the pod's volumes, and has the credentials.
func (i *injector) container() corev1.Container {
	const run, dir = "/run/fuse", "/buffers"
	return corev1.Container{
		Name: driver.SidecarVolume, Image: i.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command:       []string{"/fuse", "sidecar", run, dir},
		Resources:     i.Resources,
		RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		// Not a failure however long the store is away: the pod waits, and its events say why.
		StartupProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/fuse", "ready", dir}}},
			PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 1 << 30,
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: ptr.To[int64](user), RunAsGroup: ptr.To[int64](user), RunAsNonRoot: ptr.To(true),
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: driver.SidecarVolume, MountPath: run, ReadOnly: true}, {Name: buffers, MountPath: dir}},
	}
}

func (i *injector) volumes() []corev1.Volume {
	return []corev1.Volume{
		{Name: driver.SidecarVolume, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver.Name, ReadOnly: ptr.To(true)}}},
		{Name: buffers, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
}

// misuse returns how a pod uses what is the client's; empty: it does not.
func misuse(pod *corev1.PodSpec) string {
	reserved := map[string]bool{}
	for _, v := range pod.Volumes {
		if ours := v.CSI != nil && v.CSI.Driver == driver.Name; ours && v.Name != driver.SidecarVolume {
			return fmt.Sprintf("the volume %s is one of the driver %s without a claim: use a claim", v.Name, driver.Name)
		} else if ours {
			reserved[v.Name], reserved[buffers] = true, true
		}
	}
	if len(reserved) == 0 {
		return ""
	}
	check := func(name string, mounts []corev1.VolumeMount) string {
		for _, m := range mounts {
			if name != driver.SidecarVolume && reserved[m.Name] {
				return fmt.Sprintf("the container %s mounts the volume %s, which is for the container %s only: remove that", name, m.Name, driver.SidecarVolume)
			}
		}
		return ""
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if reason := check(c.Name, c.VolumeMounts); reason != "" {
			return reason
		}
	}
	for _, c := range pod.EphemeralContainers {
		if reason := check(c.Name, c.VolumeMounts); reason != "" {
			return reason
		}
	}
	return ""
}
