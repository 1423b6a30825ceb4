package apiserver

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apps "k8s.io/kubernetes/pkg/apis/apps"
	batch "k8s.io/kubernetes/pkg/apis/batch"
	core "k8s.io/kubernetes/pkg/apis/core"

	"kubelith.io/kubelith/trace/record"
)

// state is what an object had before or after a write. It is a copy: updates may change the object in place.
type state struct {
	uid, namespace, name, version string
	generation                    int64
	deleting                      bool
	phase                         string
	conditions                    []condition
	containers                    []container
	node                          string
	deployment                    *apps.DeploymentSpec
}

type condition struct{ kind, status, reason, message string }

// container is one that has ended, if it has.
type container struct {
	name string
	// ended and before are its current state and the one before its restart.
	ended, before core.ContainerStateTerminated
}

// stateOf returns the state of an object of storage.
func stateOf(object runtime.Object) *state {
	s := &state{}
	o, err := meta.Accessor(object)
	if err != nil {
		return s
	}
	s.uid, s.namespace, s.name, s.version = string(o.GetUID()), o.GetNamespace(), o.GetName(), o.GetResourceVersion()
	s.generation, s.deleting = o.GetGeneration(), o.GetDeletionTimestamp() != nil
	switch o := object.(type) {
	case *core.Pod:
		s.phase, s.node = string(o.Status.Phase), o.Spec.NodeName
		s.conditions = make([]condition, 0, len(o.Status.Conditions))
		for i := range o.Status.Conditions {
			c := &o.Status.Conditions[i]
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
		s.containers = make([]container, 0, len(o.Status.InitContainerStatuses)+len(o.Status.ContainerStatuses))
		for _, all := range [][]core.ContainerStatus{o.Status.InitContainerStatuses, o.Status.ContainerStatuses} {
			for i := range all {
				s.containers = append(s.containers, containerOf(&all[i]))
			}
		}
	case *core.PersistentVolumeClaim:
		s.phase = string(o.Status.Phase)
		for _, c := range o.Status.Conditions {
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
	case *core.PersistentVolume:
		s.phase = string(o.Status.Phase)
	case *core.Namespace:
		s.phase = string(o.Status.Phase)
		for _, c := range o.Status.Conditions {
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
	case *core.Node:
		for _, c := range o.Status.Conditions {
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
	case *apps.Deployment:
		spec := o.Spec
		s.deployment = &spec
		for _, c := range o.Status.Conditions {
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
	case *apps.ReplicaSet:
		for _, c := range o.Status.Conditions {
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
	case *apps.StatefulSet:
		for _, c := range o.Status.Conditions {
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
	case *apps.DaemonSet:
		for _, c := range o.Status.Conditions {
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
	case *batch.Job:
		for _, c := range o.Status.Conditions {
			s.condition(string(c.Type), c.Status, c.Reason, c.Message)
		}
	case *unstructured.Unstructured:
		s.custom(o)
	}
	return s
}

func (s *state) condition(kind string, status core.ConditionStatus, reason, message string) {
	s.conditions = append(s.conditions, condition{kind, string(status), reason, message})
}

// custom reads the conditions of a custom resource that has them as upstream's API conventions want.
func (s *state) custom(o *unstructured.Unstructured) {
	status, _ := o.Object["status"].(map[string]any)
	all, _ := status["conditions"].([]any)
	for _, item := range all {
		c, _ := item.(map[string]any)
		text := func(key string) string { t, _ := c[key].(string); return t }
		if text("type") != "" && text("status") != "" {
			s.condition(text("type"), core.ConditionStatus(text("status")), text("reason"), text("message"))
		}
	}
}

func containerOf(s *core.ContainerStatus) container {
	c := container{name: s.Name}
	if s.State.Terminated != nil {
		c.ended = *s.State.Terminated
	}
	if s.LastTerminationState.Terminated != nil {
		c.before = *s.LastTerminationState.Terminated
	}
	return c
}

// spec reports whether the specification differs, given that the generation does: upstream counts annotations of a
// Deployment, too, and its own controller sets one.
func (s *state) spec(before *state) bool {
	return s.deployment == nil || before.deployment == nil || !equality.Semantic.DeepEqual(s.deployment, before.deployment)
}

// moments returns what changed in the status, at a time.
func moments(before, after *state, at int64) []record.Record {
	var all []record.Record
	for i := range after.containers {
		c, old := &after.containers[i], container{}
		for j := range before.containers {
			if before.containers[j].name == c.name {
				old = before.containers[j]
			}
		}
		// One that was restarted meanwhile is in the state before.
		if !none(&c.before) && !same(&c.before, &old.ended) && !same(&c.before, &old.before) {
			all = append(all, run(c.name, &c.before, after.node))
		}
		if !none(&c.ended) && !same(&c.ended, &old.ended) {
			all = append(all, run(c.name, &c.ended, after.node))
		}
	}
	for _, c := range after.conditions {
		old := condition{}
		for _, o := range before.conditions {
			if o.kind == c.kind {
				old = o
			}
		}
		if old.status == c.status && old.reason == c.reason {
			continue
		}
		m := record.Record{Stage: record.Condition, Name: c.kind, Message: c.status, Start: at}
		for _, text := range []string{c.reason, c.message} {
			if text != "" {
				m.Message += ": " + text
			}
		}
		all = append(all, m)
	}
	if before.phase != after.phase {
		all = append(all, record.Record{Stage: record.Phase, Name: after.phase, Start: at})
	}
	return all
}

func none(t *core.ContainerStateTerminated) bool { return t.FinishedAt.IsZero() && t.ContainerID == "" }

func same(a, b *core.ContainerStateTerminated) bool {
	return a.ContainerID == b.ContainerID && a.FinishedAt.Equal(&b.FinishedAt)
}

// run records the life of a container. Its times are the kubelet's, in whole seconds.
func run(name string, t *core.ContainerStateTerminated, node string) record.Record {
	r := record.Record{Stage: record.Run, Name: name, Node: node, Code: int(t.ExitCode), Message: t.Reason, Start: nanos(t.StartedAt)}
	if r.Start == 0 {
		r.Start = nanos(t.FinishedAt)
	}
	if !t.FinishedAt.IsZero() {
		r.Duration = time.Duration(max(0, nanos(t.FinishedAt)-r.Start))
	}
	if t.ExitCode != 0 {
		r.Error = fmt.Sprintf("exit code %d", t.ExitCode)
		for _, text := range []string{t.Reason, t.Message} {
			if text != "" {
				r.Error += ": " + text
			}
		}
	}
	return r
}

func nanos(t metav1.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// describe returns what the recorder keeps of an object.
func describe(resource string, object runtime.Object, o metav1.Object) record.Object {
	d := record.Object{Ref: record.Ref{UID: string(o.GetUID()), Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()}, Owners: owners(o)}
	switch o := object.(type) {
	case *core.Pod:
		for i := range o.Spec.Volumes {
			if v := &o.Spec.Volumes[i]; v.PersistentVolumeClaim != nil {
				d.Claims = append(d.Claims, v.PersistentVolumeClaim.ClaimName)
			} else if v.Ephemeral != nil {
				d.Claims = append(d.Claims, o.Name+"-"+v.Name)
			}
		}
		d.InitContainers, d.Containers = containerNames(o.Spec.InitContainers), containerNames(o.Spec.Containers)
	case *core.PersistentVolumeClaim:
		d.Volume = o.Spec.VolumeName
	case *core.ReplicationController:
		d.Replicas = o.Spec.Replicas
	case *apps.Deployment:
		d.Replicas = replicas(o.Spec.Replicas)
	case *apps.ReplicaSet:
		d.Replicas = replicas(o.Spec.Replicas)
	case *apps.StatefulSet:
		d.Replicas = replicas(o.Spec.Replicas)
	}
	return d
}

func owners(o metav1.Object) []string {
	references := o.GetOwnerReferences()
	if len(references) == 0 {
		return nil
	}
	all := make([]string, len(references))
	for i := range references {
		all[i] = string(references[i].UID)
	}
	return all
}

func containerNames(containers []core.Container) []string {
	if len(containers) == 0 {
		return nil
	}
	all := make([]string, len(containers))
	for i := range containers {
		all[i] = containers[i].Name
	}
	return all
}

// replicas is a copy, so that the record does not keep the whole object.
func replicas(n int32) *int32 { return &n }
