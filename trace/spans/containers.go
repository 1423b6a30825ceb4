package spans

import (
	"fmt"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubelith.io/kubelith/trace/record"
)

// The labels that the kubelet sets on sandboxes and containers.
//
// Source: k8s.io/kubernetes/pkg/kubelet/types/labels.go.
const (
	labelUID       = "io.kubernetes.pod.uid"
	labelName      = "io.kubernetes.pod.name"
	labelNamespace = "io.kubernetes.pod.namespace"
	labelContainer = "io.kubernetes.container.name"
)

func labelled(labels map[string]string) record.Ref {
	return record.Ref{UID: labels[labelUID], Resource: pods, Namespace: labels[labelNamespace], Name: labels[labelName]}
}

// learns reports whether a list of sandboxes or containers is worth reading. The kubelet requests one each second.
func (s *Source) learns() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unknown
}

func (s *Source) addSandbox(id string, pod record.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes[id] = &sandbox{pod: pod}
}

func (s *Source) addContainer(id string, pod record.Ref, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.containers[id] = &container{pod: pod, name: name}
}

// learnSandboxes adds the sandboxes of an earlier process.
func (s *Source) learnSandboxes(items []*criv1.PodSandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range items {
		if s.sandboxes[i.GetId()] == nil && i.GetLabels()[labelUID] != "" {
			s.sandboxes[i.GetId()] = &sandbox{pod: labelled(i.GetLabels()), stopped: i.GetState() != criv1.PodSandboxState_SANDBOX_READY}
		}
	}
}

// learnContainers adds the containers of an earlier process; all: these are all. The kubelet lists the sandboxes first.
func (s *Source) learnContainers(items []*criv1.Container, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range items {
		if s.containers[i.GetId()] == nil && i.GetLabels()[labelUID] != "" {
			s.containers[i.GetId()] = &container{pod: labelled(i.GetLabels()), name: i.GetLabels()[labelContainer]}
		}
	}
	s.unknown = s.unknown && !all
}

// forget forgets what was removed; empty IDs are of nothing.
func (s *Source) forget(sandbox, container string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sandboxes, sandbox)
	delete(s.containers, container)
}

// stopped reports whether a sandbox was stopped.
func (s *Source) stopped(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.sandboxes[id]
	return known != nil && known.stopped
}

// stoppedBefore reports whether a sandbox was stopped before a call to stop it that has just succeeded or failed.
func (s *Source) stoppedBefore(id string, succeeded bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.sandboxes[id]
	if known == nil {
		return true // it may be of any time
	}
	before := known.stopped
	known.stopped = before || succeeded
	return before
}

// startedIn notes the sync that started a container.
func (s *Source) startedIn(id string, sync *syncSpan) {
	if sync == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil {
		c.started = sync.context.TraceID()
	}
}

// Used notes what a container that has ended used of memory: its peak in bytes, 0 if that is unknown, and whether the
// kernel killed in it for memory.
func (s *Source) Used(id string, peak int64, oom bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil { // not a pause container
		c.peak, c.oom = peak, oom
	}
}

// killed is the exit code of a program that SIGKILL ended, and oomKilled the reason of one that the kernel killed for
// memory.
//
// Source: github.com/containerd/containerd/v2/internal/cri/server/helpers.go (oomExitReason).
const (
	killed    = 128 + 9
	oomKilled = "OOMKilled"
)

// ended records the life of a container that has ended, once: the kubelet requests its status then.
func (s *Source) ended(status *criv1.ContainerStatus) {
	if status.GetState() != criv1.ContainerState_CONTAINER_EXITED || status.GetStartedAt() == 0 {
		return
	}
	s.mu.Lock()
	c := s.containers[status.GetId()]
	if c == nil || c.ended {
		s.mu.Unlock()
		return
	}
	c.ended = true
	peak, oom := c.peak, c.oom
	s.mu.Unlock()
	reason := status.GetReason()
	if oom && status.GetExitCode() == killed {
		reason = oomKilled // containerd may not have seen it
	}
	r := record.Record{Object: c.pod, Stage: record.Run, Name: c.name, Actor: "containerd", Code: int(status.GetExitCode()), Message: reason, Peak: peak,
		Start: s.clock.At(time.Unix(0, status.GetStartedAt())), Duration: time.Duration(status.GetFinishedAt() - status.GetStartedAt())}
	if r.Code != 0 {
		r.Error = fmt.Sprintf("exit code %d: %s", r.Code, reason)
	}
	s.sink.Add(r)
}

// stopping notes that a container is being stopped.
func (s *Source) stopping(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil {
		c.stopping = true
	}
}

// ran completes the record of a command in a container, and reports whether the result is new. The kubelet runs hooks
// in syncs, and probes outside. Of a probe the first result counts, and each that differs from the one before; not its
// output each time, which may have the time of day in it, and not what fails because the container is being stopped.
func (s *Source) ran(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.containers[c.container]
	if known == nil {
		return false
	}
	if c.sync != nil {
		hook := "preStop"
		if known.started == c.sync.context.TraceID() {
			hook = "postStart"
		}
		c.record.Stage, c.record.Name = record.Hook, hook+" "+known.name
		return true
	}
	if known.stopping {
		return false
	}
	if known.probes == nil {
		known.probes = map[uint64]int{}
	}
	before, again := known.probes[c.command]
	known.probes[c.command] = c.result
	return !again || before != c.result
}
