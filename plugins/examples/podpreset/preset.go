package main

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podPreset is the custom resource.
type podPreset struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector     metav1.LabelSelector   `json:"selector"`
		Env          []corev1.EnvVar        `json:"env"`
		EnvFrom      []corev1.EnvFromSource `json:"envFrom"`
		Volumes      []corev1.Volume        `json:"volumes"`
		VolumeMounts []corev1.VolumeMount   `json:"volumeMounts"`
	} `json:"spec"`
}

// apply adds a preset to a pod. It fails if the pod has something different of the same name.
// Source: plugin/pkg/admission/podpreset/admission.go of Kubernetes 1.19.
func apply(pod *corev1.Pod, preset *podPreset) (err error) {
	if pod.Spec.Volumes, err = merge("volume", pod.Spec.Volumes, preset.Spec.Volumes, func(v corev1.Volume) string { return v.Name }); err != nil {
		return fmt.Errorf("PodPreset %s: %w", preset.Name, err)
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if err := applyTo(&list[i], preset); err != nil {
				return fmt.Errorf("PodPreset %s, container %s: %w", preset.Name, list[i].Name, err)
			}
		}
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, applied+preset.Name, preset.ResourceVersion)
	return nil
}

func applyTo(c *corev1.Container, preset *podPreset) (err error) {
	if c.Env, err = merge("variable", c.Env, preset.Spec.Env, func(e corev1.EnvVar) string { return e.Name }); err != nil {
		return err
	}
	c.EnvFrom = append(c.EnvFrom, preset.Spec.EnvFrom...)
	paths := map[string]string{}
	for _, m := range c.VolumeMounts {
		paths[m.MountPath] = m.Name
	}
	for _, m := range preset.Spec.VolumeMounts {
		if name, taken := paths[m.MountPath]; taken && name != m.Name {
			return fmt.Errorf("%s is mounted at %s already", name, m.MountPath)
		}
	}
	c.VolumeMounts, err = merge("mount", c.VolumeMounts, preset.Spec.VolumeMounts, func(m corev1.VolumeMount) string { return m.Name })
	return err
}

// merge appends what is missing. It fails if an element of the same name differs.
func merge[T any](what string, have, more []T, name func(T) string) ([]T, error) {
	byName := map[string]T{}
	for _, v := range have {
		byName[name(v)] = v
	}
	for _, v := range more {
		if there, ok := byName[name(v)]; !ok {
			have = append(have, v)
		} else if !reflect.DeepEqual(there, v) {
			return nil, fmt.Errorf("there is another %s %s", what, name(v))
		}
	}
	return have, nil
}
