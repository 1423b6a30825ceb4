package main

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// annotation and its text are upstream's.
const annotation = "kubernetes.io/initial-resources"

// fill sets the requests that the containers of a pod lack, if enough is known of their images, and returns how many it
// has set. Init containers are left out, except sidecars: they have ended before a measurement.
// Source of the rules: plugin/pkg/admission/initialresources/admission.go of Kubernetes 1.10.
func (p *plugin) fill(pod *corev1.Pod, namespace string, now time.Time) (set int) {
	var did []string
	fill := func(c *corev1.Container) {
		if names := p.fillContainer(c, pod.Spec.Resources, namespace, now); len(names) > 0 {
			set += len(names)
			did = append(did, strings.Join(names, ", ")+" request for container "+c.Name)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			fill(c)
		}
	}
	for i := range pod.Spec.Containers {
		fill(&pod.Spec.Containers[i])
	}
	if set > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotation, "Initial Resources plugin set: "+strings.Join(did, "; "))
	}
	return set
}

// fillContainer returns the names of the requests that it has set. A resource that the pod as a whole requests or
// limits is its owner's to divide.
func (p *plugin) fillContainer(c *corev1.Container, whole *corev1.ResourceRequirements, namespace string, now time.Time) (names []string) {
	var missing []corev1.ResourceName
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if _, has := c.Resources.Requests[name]; !has && !mentions(whole, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	known, enough := p.known(c.Image, namespace, now)
	if !enough {
		return nil
	}
	for _, name := range missing {
		request := *resource.NewMilliQuantity(known.CPU.percentile(p.settings.Percentile, cpuScale), resource.DecimalSI)
		if name == corev1.ResourceMemory {
			mib := (known.Memory.percentile(p.settings.Percentile, memoryScale) + 1<<20 - 1) >> 20
			request = *resource.NewQuantity(mib<<20, resource.BinarySI)
		}
		if limit, has := c.Resources.Limits[name]; has && request.Cmp(limit) > 0 {
			request = limit
		}
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		c.Resources.Requests[name] = request
		names = append(names, string(name))
	}
	return names
}

func mentions(whole *corev1.ResourceRequirements, name corev1.ResourceName) bool {
	if whole == nil {
		return false
	}
	_, requested := whole.Requests[name]
	_, limited := whole.Limits[name]
	return requested || limited
}

// known is what containers have used: those of the same image in the namespace or, if these were too few, in all
// namespaces, else those of any version of the image. enough: even the widest were not too few.
func (p *plugin) known(name, namespace string, now time.Time) (known usage, enough bool) {
	sameImage := func(i image) bool { return i.Name == name }
	sameRepository := func(i image) bool { return repository(i.Name) == repository(name) }
	here := func(i image) bool { return i.Namespace == namespace }
	and := func(all ...func(image) bool) func(image) bool {
		return func(i image) bool {
			return !slices.ContainsFunc(all, func(matches func(image) bool) bool { return !matches(i) })
		}
	}
	from := []func(image) bool{and(sameImage, here), sameImage, sameRepository}
	if p.settings.NamespaceOnly {
		from = []func(image) bool{and(sameImage, here), and(sameRepository, here)}
	}
	for _, matches := range from {
		if known = p.history.sum(matches, now); known.CPU.enough(p.settings.MinSamples) {
			return known, true
		}
	}
	return usage{}, false
}

// repository is the name of an image without tag and digest.
func repository(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name = name[:colon]
	}
	return name
}
