package scheduling

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// everything is sent about nodes to a plugin that does not declare what it needs: all fields but the pods.
var everything = &pluginv1.NodeFields{Labels: true, Annotations: true, Taints: true, Allocatable: true, Requested: true}

func fields(d *pluginv1.SchedulingDescription) *pluginv1.NodeFields {
	if d.GetNeeds() == nil {
		return everything
	}
	return d.GetNeeds()
}

// asUTF8 returns s as valid UTF-8, which protobuf requires. The API accepts any bytes in annotations from clients that
// use protobuf; one node with such an annotation would make filtering fail for all pods.
func asUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// allUTF8 is asUTF8 for keys and values. It returns m itself if there is nothing to replace.
func allUTF8(m map[string]string) map[string]string {
	for key, value := range m {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			out := make(map[string]string, len(m))
			for key, value := range m {
				out[asUTF8(key)] = asUTF8(value)
			}
			return out
		}
	}
	return m
}

// nodeMessage returns a node with the fields that a plugin needs.
func nodeMessage(info fwk.NodeInfo, needs *pluginv1.NodeFields) *schedulingv1.Node {
	node := info.Node()
	out := &schedulingv1.Node{Name: asUTF8(node.Name), Unschedulable: node.Spec.Unschedulable}
	if needs.GetLabels() {
		out.Labels = allUTF8(node.Labels)
	}
	if needs.GetAnnotations() {
		out.Annotations = allUTF8(node.Annotations)
	}
	if needs.GetTaints() {
		for i := range node.Spec.Taints {
			t := &node.Spec.Taints[i]
			out.Taints = append(out.Taints, &schedulingv1.Taint{Key: asUTF8(t.Key), Value: asUTF8(t.Value), Effect: asUTF8(string(t.Effect))})
		}
	}
	if needs.GetAllocatable() {
		out.Allocatable = resources(info.GetAllocatable())
		out.Allocatable.Pods = int64(info.GetAllocatable().GetAllowedPodNumber())
	}
	if needs.GetRequested() {
		out.Requested = resources(info.GetRequested())
		out.Requested.Pods = int64(len(info.GetPods()))
	}
	if needs.GetPods() {
		for _, pod := range info.GetPods() {
			out.Pods = append(out.Pods, nodePod(pod))
		}
	}
	return out
}

func nodePod(info fwk.PodInfo) *schedulingv1.NodePod {
	pod := info.GetPod()
	return &schedulingv1.NodePod{Namespace: asUTF8(pod.Namespace), Name: asUTF8(pod.Name), Labels: allUTF8(pod.Labels),
		Priority: corev1helpers.PodPriority(pod), Requests: resources(info.CalculateResource().Resource)}
}

func resources(r fwk.Resource) *schedulingv1.Resources {
	out := &schedulingv1.Resources{MilliCpu: r.GetMilliCPU(), Memory: r.GetMemory(), EphemeralStorage: r.GetEphemeralStorage()}
	for name, value := range r.GetScalarResources() {
		if out.Scalar == nil {
			out.Scalar = map[string]int64{}
		}
		out.Scalar[asUTF8(string(name))] = value
	}
	return out
}

// podMessage returns what results for a pod may depend on. It has neither name and UID nor kubectl's last-applied
// annotation, so pods of one template have equal messages.
func podMessage(pod *corev1.Pod) (*schedulingv1.Pod, error) {
	out := &schedulingv1.Pod{
		Namespace:     asUTF8(pod.Namespace),
		Labels:        allUTF8(pod.Labels),
		Annotations:   allUTF8(pod.Annotations),
		Priority:      corev1helpers.PodPriority(pod),
		Requests:      resources((&framework.PodInfo{Pod: pod}).CalculateResource().Resource),
		NodeSelector:  allUTF8(pod.Spec.NodeSelector),
		SchedulerName: asUTF8(pod.Spec.SchedulerName),
	}
	if _, ok := pod.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		out.Annotations = maps.Clone(out.Annotations)
		delete(out.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	var err error
	if pod.Spec.Affinity != nil {
		if out.Affinity, err = json.Marshal(pod.Spec.Affinity); err != nil {
			return nil, fmt.Errorf("affinity of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	for i := range pod.Spec.Tolerations {
		toleration, err := json.Marshal(&pod.Spec.Tolerations[i])
		if err != nil {
			return nil, fmt.Errorf("tolerations of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		out.Tolerations = append(out.Tolerations, toleration)
	}
	return out, nil
}

// podCache keeps the last pod's message, as several plugins sign, filter and score the same pod in turn.
type podCache struct {
	last atomic.Pointer[cachedPod]
}

type cachedPod struct {
	pod       *corev1.Pod
	message   *schedulingv1.Pod
	signature string
}

func (c *podCache) get(pod *corev1.Pod) (*cachedPod, error) {
	if last := c.last.Load(); last != nil && last.pod == pod {
		return last, nil
	}
	message, err := podMessage(pod)
	if err != nil {
		return nil, err
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	sum := sha256.Sum256(raw)
	next := &cachedPod{pod, message, hex.EncodeToString(sum[:])}
	c.last.Store(next)
	return next, nil
}

// message returns the message of a pod; full includes the whole pod.
func (c *podCache) message(pod *corev1.Pod, full bool) (*schedulingv1.Pod, error) {
	cached, err := c.get(pod)
	if err != nil {
		return nil, err
	}
	if !full {
		return cached.message, nil
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	out := proto.Clone(cached.message).(*schedulingv1.Pod)
	out.Full = raw
	return out, nil
}

// signature returns a digest of the pod's message.
func (c *podCache) signature(pod *corev1.Pod) (string, error) {
	cached, err := c.get(pod)
	if err != nil {
		return "", err
	}
	return cached.signature, nil
}
