package why

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Options configure a Reader.
type Options struct {
	// Client and Dynamic act with the rights of the caller.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Placement reports which nodes would take a pod; nil: only the scheduler's message explains.
	Placement Placement
	// Connect lets the API server connect to a port of a pod; an error is a connection that failed, or an answer that
	// is none. Nil: through the pod's proxy.
	Connect func(ctx context.Context, namespace, pod string, port int32) error
	// Record answers for objects that do not exist any more; nil: nothing does.
	Record Record
	// Now is time.Now if nil.
	Now func() time.Time
}

// Reader reads objects, each once. It is for one question and one goroutine.
type Reader struct {
	Options
	read   map[string]result
	unread []string
	// ofPod: a pod is being explained, so that its claim is not explained by that pod, or by another one that uses it.
	ofPod bool
	// guarded are the pods whose ingress a network policy restricts.
	guarded map[Object]bool
}

type result struct {
	value any
	err   error
}

// NewReader returns a Reader that has read nothing.
func NewReader(o Options) *Reader {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Connect == nil {
		o.Connect = func(ctx context.Context, namespace, pod string, port int32) error {
			// Not HEAD: the reason of a failure is in the body.
			answer, err := o.Client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").Name(fmt.Sprintf("%s:%d", pod, port)).
				SubResource("proxy").Timeout(5 * time.Second).Stream(ctx)
			if err == nil {
				err = answer.Close()
			}
			return err
		}
	}
	return &Reader{Options: o, read: map[string]result{}, guarded: map[Object]bool{}}
}

// now returns the time that ages count back from.
func (r *Reader) now() time.Time { return r.Options.Now() }

// age is how long ago t was.
func (r *Reader) age(t metav1.Time) time.Duration { return r.now().Sub(t.Time) }

// once calls f for the first question that what names and returns the same result ever after. What the caller may not
// read is remembered for the answer.
func once[T any](r *Reader, what string, f func() (T, error)) (T, error) {
	if known, ok := r.read[what]; ok {
		value, _ := known.value.(T)
		return value, known.err
	}
	value, err := f()
	if apierrors.IsForbidden(err) {
		r.unread = append(r.unread, "you may not "+what)
	}
	r.read[what] = result{value, err}
	return value, err
}

// get reads one object; resource is its name as in an RBAC rule, "deployments.apps".
func get[T any](ctx context.Context, r *Reader, resource, namespace, name string,
	f func(ctx context.Context, name string, o metav1.GetOptions) (T, error)) (T, error) {
	return once(r, strings.TrimSuffix(fmt.Sprintf("get %s/%s in namespace %s", resource, name, namespace), " in namespace "), func() (T, error) {
		return f(ctx, name, metav1.GetOptions{})
	})
}

// list reads all objects of a resource that o selects; namespace "" is all namespaces.
func list[T any](ctx context.Context, r *Reader, resource, namespace string, o metav1.ListOptions,
	f func(ctx context.Context, o metav1.ListOptions) (T, error)) (T, error) {
	what := "list " + resource
	if namespace != "" {
		what += " in namespace " + namespace
	}
	for _, selector := range []string{o.LabelSelector, o.FieldSelector} {
		if selector != "" {
			what += " with " + selector
		}
	}
	return once(r, what, func() (T, error) { return f(ctx, o) })
}

// unreadable reports whether an object is unknown because the caller may not read it. Any other error but "not found"
// is one of these too: the answer goes on without the object.
func unreadable(err error) bool { return err != nil && !apierrors.IsNotFound(err) }

// Pod reads a pod.
func (r *Reader) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return get(ctx, r, "pods", namespace, name, r.Client.CoreV1().Pods(namespace).Get)
}

// Pods reads the pods of a namespace, or of all with "", that a label selector selects.
func (r *Reader) Pods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	l, err := list(ctx, r, "pods", namespace, metav1.ListOptions{LabelSelector: selector}, r.Client.CoreV1().Pods(namespace).List)
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// ConfigMap reads a ConfigMap.
func (r *Reader) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	return get(ctx, r, "configmaps", namespace, name, r.Client.CoreV1().ConfigMaps(namespace).Get)
}

// Secret reads which keys a Secret has, and its type. The values are dropped at once.
func (r *Reader) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return get(ctx, r, "secrets", namespace, name, func(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
		s, err := r.Client.CoreV1().Secrets(namespace).Get(ctx, name, o)
		if err != nil {
			return nil, err
		}
		keys := map[string][]byte{}
		for key := range s.Data {
			keys[key] = nil
		}
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID}, Type: s.Type, Data: keys}, nil
	})
}

// Claim reads a PersistentVolumeClaim.
func (r *Reader) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return get(ctx, r, "persistentvolumeclaims", namespace, name, r.Client.CoreV1().PersistentVolumeClaims(namespace).Get)
}

// Volume reads a PersistentVolume.
func (r *Reader) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return get(ctx, r, "persistentvolumes", "", name, r.Client.CoreV1().PersistentVolumes().Get)
}

// Volumes reads all PersistentVolumes.
func (r *Reader) Volumes(ctx context.Context) ([]corev1.PersistentVolume, error) {
	l, err := list(ctx, r, "persistentvolumes", "", metav1.ListOptions{}, r.Client.CoreV1().PersistentVolumes().List)
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// Deployment reads a Deployment.
func (r *Reader) Deployment(ctx context.Context, namespace, name string) (*appsv1.Deployment, error) {
	return get(ctx, r, "deployments.apps", namespace, name, r.Client.AppsV1().Deployments(namespace).Get)
}

// ReplicaSet reads a ReplicaSet.
func (r *Reader) ReplicaSet(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	return get(ctx, r, "replicasets.apps", namespace, name, r.Client.AppsV1().ReplicaSets(namespace).Get)
}

// StatefulSet reads a StatefulSet.
func (r *Reader) StatefulSet(ctx context.Context, namespace, name string) (*appsv1.StatefulSet, error) {
	return get(ctx, r, "statefulsets.apps", namespace, name, r.Client.AppsV1().StatefulSets(namespace).Get)
}

// DaemonSet reads a DaemonSet.
func (r *Reader) DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	return get(ctx, r, "daemonsets.apps", namespace, name, r.Client.AppsV1().DaemonSets(namespace).Get)
}

// Job reads a Job.
func (r *Reader) Job(ctx context.Context, namespace, name string) (*batchv1.Job, error) {
	return get(ctx, r, "jobs.batch", namespace, name, r.Client.BatchV1().Jobs(namespace).Get)
}

// CronJob reads a CronJob.
func (r *Reader) CronJob(ctx context.Context, namespace, name string) (*batchv1.CronJob, error) {
	return get(ctx, r, "cronjobs.batch", namespace, name, r.Client.BatchV1().CronJobs(namespace).Get)
}

// Service reads a Service.
func (r *Reader) Service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	return get(ctx, r, "services", namespace, name, r.Client.CoreV1().Services(namespace).Get)
}

// EndpointSlices reads the EndpointSlices of a Service.
func (r *Reader) EndpointSlices(ctx context.Context, s *corev1.Service) ([]discoveryv1.EndpointSlice, error) {
	l, err := list(ctx, r, "endpointslices.discovery.k8s.io", s.Namespace, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name},
		r.Client.DiscoveryV1().EndpointSlices(s.Namespace).List)
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// HPA reads a HorizontalPodAutoscaler.
func (r *Reader) HPA(ctx context.Context, namespace, name string) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	return get(ctx, r, "horizontalpodautoscalers.autoscaling", namespace, name, r.Client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get)
}

// Namespace reads a namespace.
func (r *Reader) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return get(ctx, r, "namespaces", "", name, r.Client.CoreV1().Namespaces().Get)
}

// Node reads a node.
func (r *Reader) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return get(ctx, r, "nodes", "", name, r.Client.CoreV1().Nodes().Get)
}

// Nodes reads all nodes.
func (r *Reader) Nodes(ctx context.Context) ([]corev1.Node, error) {
	l, err := list(ctx, r, "nodes", "", metav1.ListOptions{}, r.Client.CoreV1().Nodes().List)
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// Event is an Event of either API, with its last time.
type Event struct {
	corev1.Event
	Last metav1.Time
}

// Source is the event as a source of evidence.
func (e Event) Source() string {
	return fmt.Sprintf("event %s of %s/%s", e.Reason, strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name)
}

// Events reads the Events about an object, the last one first. Without a right to do so there are none.
func (r *Reader) Events(ctx context.Context, object metav1.Object) []Event {
	namespace := object.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where upstream's recorders write those of cluster-scoped objects
	}
	uid := string(object.GetUID())
	if object.GetNamespace() == "" && uid != object.GetName() {
		// The kubelet's Events about its Node have the node's name as UID.
		return append(r.eventsOf(ctx, namespace, uid), r.eventsOf(ctx, namespace, object.GetName())...)
	}
	return r.eventsOf(ctx, namespace, uid)
}

func (r *Reader) eventsOf(ctx context.Context, namespace, uid string) []Event {
	selector := fields.OneTermEqualSelector("involvedObject.uid", uid).String()
	l, err := once(r, "list events in namespace "+namespace+" with "+selector, func() (*corev1.EventList, error) {
		return r.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
	})
	if err != nil {
		return nil
	}
	var events []Event
	for _, e := range l.Items {
		if string(e.InvolvedObject.UID) != uid {
			continue
		}
		last := e.LastTimestamp
		if e.Series != nil && e.Series.LastObservedTime.After(last.Time) {
			last = metav1.Time{Time: e.Series.LastObservedTime.Time}
		}
		if last.IsZero() {
			last = metav1.Time{Time: e.EventTime.Time}
		}
		if last.IsZero() {
			last = e.CreationTimestamp
		}
		events = append(events, Event{e, last})
	}
	slices.SortStableFunc(events, func(a, b Event) int { return b.Last.Compare(a.Last.Time) })
	return events
}

// LastEvent is the last Event about an object with one of reasons, unless it is older than after.
func (r *Reader) LastEvent(ctx context.Context, object metav1.Object, after metav1.Time, reasons ...string) *Event {
	for _, e := range r.Events(ctx, object) {
		// Times of Events have seconds only.
		if slices.Contains(reasons, e.Reason) && !e.Last.Time.Before(after.Truncate(time.Second)) {
			return &e
		}
	}
	return nil
}
