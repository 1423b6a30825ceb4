package why

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/oneline"
)

// A mount that fails is tried again, after two minutes at the latest: an Event that is older is not about now.
//
// Source: k8s.io/kubernetes/pkg/util/goroutinemap/exponentialbackoff
const retried = 3 * time.Minute

// needed is a ConfigMap or Secret, or keys of one, that a pod cannot start without.
type needed struct {
	secret bool
	name   string
	keys   []string
	// where is the field that requests it.
	where string
}

func (n needed) String() string {
	if n.secret {
		return "secret/" + n.name
	}
	return "configmap/" + n.name
}

func is(optional *bool) bool { return optional != nil && *optional }

// neededByVolumes are what the volumes of a pod are made from.
func neededByVolumes(pod *corev1.Pod) []needed {
	var all []needed
	add := func(secret bool, name string, items []corev1.KeyToPath, optional *bool, where string) {
		if is(optional) {
			return
		}
		n := needed{secret: secret, name: name, where: where}
		for _, item := range items {
			n.keys = append(n.keys, item.Key)
		}
		all = append(all, n)
	}
	for _, v := range pod.Spec.Volumes {
		where := fmt.Sprintf("pod/%s .spec.volumes[%s]", pod.Name, v.Name)
		if s := v.ConfigMap; s != nil {
			add(false, s.Name, s.Items, s.Optional, where+".configMap")
		}
		if s := v.Secret; s != nil {
			add(true, s.SecretName, s.Items, s.Optional, where+".secret")
		}
		if v.Projected != nil {
			for _, p := range v.Projected.Sources {
				if s := p.ConfigMap; s != nil {
					add(false, s.Name, s.Items, s.Optional, where+".projected")
				}
				if s := p.Secret; s != nil {
					add(true, s.Name, s.Items, s.Optional, where+".projected")
				}
			}
		}
	}
	return all
}

// neededByEnv are what the environment of a container is made from.
func neededByEnv(c container) []needed {
	var all []needed
	for _, e := range c.spec.EnvFrom {
		where := c.specPath() + ".envFrom"
		if s := e.ConfigMapRef; s != nil && !is(s.Optional) {
			all = append(all, needed{name: s.Name, where: where})
		}
		if s := e.SecretRef; s != nil && !is(s.Optional) {
			all = append(all, needed{secret: true, name: s.Name, where: where})
		}
	}
	for _, e := range c.spec.Env {
		if e.ValueFrom == nil {
			continue
		}
		where := c.specPath() + ".env[" + e.Name + "]"
		if s := e.ValueFrom.ConfigMapKeyRef; s != nil && !is(s.Optional) {
			all = append(all, needed{name: s.Name, keys: []string{s.Key}, where: where})
		}
		if s := e.ValueFrom.SecretKeyRef; s != nil && !is(s.Optional) {
			all = append(all, needed{secret: true, name: s.Name, keys: []string{s.Key}, where: where})
		}
	}
	return all
}

// missing explains the first ConfigMap, Secret or key that does not exist; nil: all exist, as far as the caller may
// read.
func (r *Reader) missing(ctx context.Context, pod *corev1.Pod, all []needed) *Finding {
	for _, n := range all {
		keys, err := r.keys(ctx, pod.Namespace, n)
		code, kind, create := ConfigMapMissing, "ConfigMap", "create configmap %s --from-literal=KEY=VALUE"
		if n.secret {
			code, kind, create = SecretMissing, "Secret", "create secret generic %s --from-literal=KEY=VALUE"
		}
		if apierrors.IsNotFound(err) {
			f := broken(code, fmt.Sprintf("pod/%s needs the %s %s, which does not exist in namespace %s",
				pod.Name, kind, n.name, pod.Namespace))
			f.saw(n.where, "names "+n.name).saw(n.String(), "does not exist")
			return f.do(kubectl(pod.Namespace, create, n.name), recreate(pod, "Or correct the name, or set optional: true,"))
		}
		if err != nil {
			continue
		}
		for _, key := range n.keys {
			if slices.Contains(keys, key) {
				continue
			}
			slices.Sort(keys)
			f := broken(KeyMissing, fmt.Sprintf("pod/%s needs the key %s of the %s %s, which has no such key", pod.Name, key, kind, n.name))
			f.saw(n.where, "names the key "+key).saw(n.String(), "has the keys: "+firstOf(strings.Join(keys, ", "), "none"))
			return f.not(code, fmt.Sprintf("the %s is missing", kind), "it exists").
				do(fmt.Sprintf("Add the key to the %s, or correct its name in the pod.", kind))
		}
	}
	return nil
}

// keys are the keys of a ConfigMap or Secret.
func (r *Reader) keys(ctx context.Context, namespace string, n needed) (keys []string, err error) {
	if n.secret {
		s, err := r.Secret(ctx, namespace, n.name)
		if err == nil {
			for key := range s.Data {
				keys = append(keys, key)
			}
		}
		return keys, err
	}
	m, err := r.ConfigMap(ctx, namespace, n.name)
	if err == nil {
		for key := range m.Data {
			keys = append(keys, key)
		}
		for key := range m.BinaryData {
			keys = append(keys, key)
		}
	}
	return keys, err
}

// configMissing explains a container whose configuration the kubelet cannot create.
//
// Source: makeEnvironmentVariables in k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go, verifyRunAsNonRoot in
// pkg/kubelet/kuberuntime/security_context.go
func (r *Reader) configMissing(ctx context.Context, pod *corev1.Pod, c container) *Finding {
	waiting := c.status.State.Waiting
	f := r.missing(ctx, pod, neededByEnv(c))
	switch {
	case f != nil:
	case strings.Contains(waiting.Message, "runAsNonRoot"):
		f = broken(RunAsRootRefused, fmt.Sprintf("%s must not run as root (runAsNonRoot), but its image %s does", c, c.spec.Image)).
			do(recreate(pod, "Set runAsUser to a number other than 0, or build the image with a numeric USER,"))
	case strings.Contains(strings.ToLower(waiting.Message), "subpath"):
		f = r.notStarted(pod, c, waiting.Reason, waiting.Message, metav1.Time{})
	default:
		f = broken(ContainerFailed, fmt.Sprintf("the kubelet cannot create the configuration of %s: %s", c, firstOf(waiting.Message, waiting.Reason))).
			do("If it names an object that exists by now: wait, the kubelet tries again within a minute.")
	}
	return f.saw(c.path()+"state.waiting", waiting.Reason+": "+waiting.Message)
}

// created reports whether the kubelet has created any container of a pod: its volumes and its network are there.
func created(pod *corev1.Pod) bool {
	if c := podCondition(pod, corev1.PodReadyToStartContainers); c != nil {
		return c.Status == corev1.ConditionTrue
	}
	return slices.ContainsFunc(containersOf(pod), func(c container) bool {
		return c.status != nil && (c.status.ContainerID != "" || c.status.LastTerminationState.Terminated != nil)
	})
}

// noSandbox is the reason of the kubelet's Event about a sandbox that cannot be created. It mounts the volumes first.
//
// Source: k8s.io/kubernetes/pkg/kubelet/events (FailedCreatePodSandBox); pkg/kubelet/kubelet.go (SyncPod) for the order
const noSandbox = "FailedCreatePodSandBox"

// podVolumes explains a pod on a node whose volumes cannot be mounted.
func podVolumes(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	if created(pod) {
		return nil
	}
	if f := podClaims(ctx, r, pod); f != nil {
		return f
	}
	e := r.LastEvent(ctx, pod, metav1.NewTime(r.now().Add(-retried)), "FailedMount", "FailedAttachVolume", "FailedMapVolume", noSandbox)
	if e != nil && e.Reason == noSandbox {
		e = nil // the volumes were mounted before that
	}
	// A kubelet may see a pod a moment before the node authorizer does.
	//
	// Source: k8s.io/kubernetes/plugin/pkg/auth/authorizer/node (node_authorizer.go)
	if e != nil && r.age(e.Last) < fresh && strings.Contains(e.Message, "no relationship found between node") {
		e = nil
	}
	if f := r.missing(ctx, pod, neededByVolumes(pod)); f != nil {
		return f.sawCondition(pod, corev1.PodReadyToStartContainers).sawEvent(e)
	}
	if e == nil {
		return nil
	}
	message := e.Message
	volume := volumeOf(pod, message)
	name := firstOf(volume.Name, "of the pod")
	var f *Finding
	switch {
	// Source: k8s.io/kubernetes/pkg/volume/hostpath/host_path.go (checkTypeInternal)
	case volume.HostPath != nil && strings.Contains(message, "hostPath type check failed"):
		want := ""
		if volume.HostPath.Type != nil {
			want = string(*volume.HostPath.Type)
		}
		path := volume.HostPath.Path
		f = broken(HostPathType, fmt.Sprintf("the volume %s of pod/%s needs %s to be a %s on node %s, but it is missing or of another type there",
			name, pod.Name, path, want, pod.Spec.NodeName))
		f.saw(fmt.Sprintf("pod/%s .spec.volumes[%s].hostPath", pod.Name, name), fmt.Sprintf("path %s, type %s", path, want))
		f.do(fmt.Sprintf("Create %s on node %s, correct the path, or use type DirectoryOrCreate or FileOrCreate.", path, pod.Spec.NodeName))
	// Source: k8s.io/kubernetes/pkg/volume/csi/csi_client.go (newCsiDriverClient)
	case strings.Contains(message, "not found in the list of registered CSI drivers"):
		f = broken(DriverMissing, fmt.Sprintf("node %s has no CSI driver %s, which the volume %s of pod/%s needs",
			pod.Spec.NodeName, r.driver(ctx, pod, volume), name, pod.Name))
		r.sawDrivers(ctx, f, pod.Spec.NodeName)
		f.not(DriverFailing, "the driver fails", "it was not called: it is not registered on the node").
			do("Install the driver on this node, or check that its plugin runs there: kubelith plugin list.")
	// Source: k8s.io/kubernetes/pkg/volume/csi: errors of the driver are gRPC statuses
	case strings.Contains(message, "rpc error: code ="):
		f = broken(DriverFailing, fmt.Sprintf("the CSI driver %s fails for the volume %s of pod/%s: %s",
			r.driver(ctx, pod, volume), name, pod.Name, oneline.Shorten(after(message, "desc = "), 300)))
		f.not(DriverMissing, "the driver is missing", "it answered: the error is the driver's").
			do("Read the driver's log; the kubelet calls it again by itself.")
	default:
		f = broken(VolumeFailing, fmt.Sprintf("the volume %s of pod/%s cannot be mounted: %s", name, pod.Name, oneline.Shorten(lastPart(message), 300))).
			do("The message is the volume plugin's; the kubelet tries again by itself.")
	}
	return r.unlessFirst(f, e).sawEvent(e).sawCondition(pod, corev1.PodReadyToStartContainers)
}

// unlessFirst takes a failure that an Event reports for no fault yet if it happened once and just now: the kubelet
// retries within a second, and what a pod's start waits for is often there by then.
func (r *Reader) unlessFirst(f *Finding, e *Event) *Finding {
	if e.Count < 2 && r.age(e.Last) < fresh {
		f.Status, f.Cause = Progressing, "in progress: the kubelet tries again after: "+f.Cause
	}
	return f.since(e.FirstTimestamp)
}

// after is what follows a mark in a text, or the text.
func after(text, mark string) string {
	if i := strings.LastIndex(text, mark); i >= 0 {
		return text[i+len(mark):]
	}
	return text
}

// volumeOf is the volume of a pod that an Event names, or an empty one.
//
// Source: k8s.io/kubernetes/pkg/volume/util/types (GenerateError): MountVolume.SetUp failed for volume "NAME"
func volumeOf(pod *corev1.Pod, message string) corev1.Volume {
	_, rest, ok := strings.Cut(message, `for volume "`)
	name, _, closed := strings.Cut(rest, `"`)
	for _, v := range pod.Spec.Volumes {
		// Of a claim, the name is that of the PersistentVolume.
		if ok && closed && (v.Name == name || v.PersistentVolumeClaim != nil && strings.HasPrefix(name, "pvc-")) {
			return v
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.CSI != nil || v.Ephemeral != nil {
			return v
		}
	}
	return corev1.Volume{}
}

// driver is the name of the CSI driver of a volume.
func (r *Reader) driver(ctx context.Context, pod *corev1.Pod, v corev1.Volume) string {
	if v.CSI != nil {
		return v.CSI.Driver
	}
	claim := claimName(pod, v)
	if claim == "" {
		return "of the volume"
	}
	pvc, err := r.Claim(ctx, pod.Namespace, claim)
	if err != nil {
		return "of claim " + claim
	}
	pv, err := r.Volume(ctx, pvc.Spec.VolumeName)
	if err != nil || pv.Spec.CSI == nil {
		return "of claim " + claim
	}
	return pv.Spec.CSI.Driver
}

// sawDrivers adds which CSI drivers a node has.
func (r *Reader) sawDrivers(ctx context.Context, f *Finding, node string) {
	n, err := get(ctx, r, "csinodes.storage.k8s.io", "", node, r.Client.StorageV1().CSINodes().Get)
	if err != nil {
		return
	}
	var names []string
	for _, d := range n.Spec.Drivers {
		names = append(names, d.Name)
	}
	f.saw("csinode/"+node+" .spec.drivers", firstOf(strings.Join(names, ", "), "none"))
}

// claimName is the claim of a volume; "" if it has none.
func claimName(pod *corev1.Pod, v corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name // Source: k8s.io/component-helpers/storage/ephemeral, VolumeClaimName
	}
	return ""
}

// podClaims explains a pod whose claims are missing or not bound. Why a claim is not bound, what
// explains claims knows.
func podClaims(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	for _, v := range pod.Spec.Volumes {
		name := claimName(pod, v)
		if name == "" {
			continue
		}
		where := fmt.Sprintf("pod/%s .spec.volumes[%s]", pod.Name, v.Name)
		claim, err := r.Claim(ctx, pod.Namespace, name)
		if apierrors.IsNotFound(err) {
			if v.Ephemeral != nil && r.age(pod.CreationTimestamp) < fresh {
				continue // its controller is about to create it
			}
			return broken(ClaimMissing, fmt.Sprintf("pod/%s needs the claim %s, which does not exist in namespace %s", pod.Name, name, pod.Namespace)).
				saw(where, "names the claim "+name).saw("persistentvolumeclaim/"+name, "does not exist").sawCondition(pod, corev1.PodScheduled).
				do("Create the PersistentVolumeClaim, or correct its name in the pod.")
		}
		if err != nil || claim.Status.Phase == corev1.ClaimBound {
			continue
		}
		if f := r.unbound(ctx, claim); f != nil && f.Status == Broken {
			f.sawCondition(pod, corev1.PodScheduled)
			return f.under(podObject(pod), claimObject(claim))
		}
	}
	return nil
}

// unbound explains a claim of a pod that is not bound.
func (r *Reader) unbound(ctx context.Context, claim *corev1.PersistentVolumeClaim) *Finding {
	defer func(before bool) { r.ofPod = before }(r.ofPod)
	r.ofPod = true
	f, err := explainClaim(ctx, r, claim)
	if err != nil {
		return nil
	}
	return f
}

// podSandbox explains a pod whose sandbox or network cannot be created.
//
// Source: k8s.io/kubernetes/pkg/kubelet/kuberuntime (createPodSandbox); github.com/containerd/go-cni and
// github.com/containernetworking/cni/libcni for `plugin type="NAME" failed (add)`
func podSandbox(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	if created(pod) || pod.Spec.NodeName == "" {
		return nil
	}
	e := r.LastEvent(ctx, pod, metav1.NewTime(r.now().Add(-retried)), noSandbox, "NetworkNotReady")
	if e == nil {
		if len(pod.Status.ContainerStatuses) == 0 {
			f := found(Progressing, InProgress, fmt.Sprintf("in progress: pod/%s was assigned to node %s, whose kubelet has not reported on it yet",
				pod.Name, pod.Spec.NodeName))
			return f.sawCondition(pod, corev1.PodScheduled)
		}
		return nil
	}
	message, f := e.Message, (*Finding)(nil)
	switch {
	case e.Reason == "NetworkNotReady":
		f = broken(NetworkFailing, fmt.Sprintf("node %s has no pod network yet: %s", pod.Spec.NodeName, lastPart(message)))
	case strings.Contains(message, "failed to setup network for sandbox") || strings.Contains(message, "plugin type="):
		plugin := ""
		if _, rest, ok := strings.Cut(message, `plugin type="`); ok {
			plugin, _, _ = strings.Cut(rest, `"`)
			plugin = " " + plugin
		}
		f = broken(NetworkFailing, fmt.Sprintf("the network of pod/%s cannot be set up on node %s: the CNI program%s fails: %s",
			pod.Name, pod.Spec.NodeName, plugin, oneline.Shorten(lastPart(message), 300)))
	default:
		f = broken(SandboxFailing, fmt.Sprintf("the sandbox of pod/%s cannot be created on node %s: %s",
			pod.Name, pod.Spec.NodeName, oneline.Shorten(lastPart(message), 300))).
			do("The message is the container runtime's: read kubelith's log on that node. The kubelet tries again by itself.")
	}
	first := *e
	for _, other := range r.Events(ctx, pod) { // each attempt has its own Event: the sandbox's ID is in the message
		if other.Reason == e.Reason && other.FirstTimestamp.Before(&first.FirstTimestamp) {
			first.FirstTimestamp, first.Last = other.FirstTimestamp, other.FirstTimestamp
		}
	}
	r.unlessFirst(f, &first).sawEvent(e).sawCondition(pod, corev1.PodReadyToStartContainers)
	if f.Code == SandboxFailing {
		return f
	}
	return f.not(ImageNotFound, "an image is missing", "no image is pulled before the network is there").
		do("On that node: is the configuration in /etc/cni/net.d right, do its programs exist, does the node's pod CIDR have free addresses?")
}
