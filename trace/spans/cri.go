package spans

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/trace/record"
)

// Handler returns a handler for the gRPC server of the container runtime.
func (s *Source) Handler() stats.Handler { return handler{s} }

type handler struct{ source *Source }

// callKey is the context key of a *call.
type callKey struct{}

// call is a call to the CRI that concerns a pod, or answers which pods there are.
type call struct {
	source *Source
	sync   *syncSpan // in which it is sent; nil: none
	method string
	start  time.Time
	record record.Record // Stage empty: nothing is recorded
	span   *callSpan

	sandbox   string // ID of an existing one
	container string
	command   uint64 // of an ExecSync: a hash
	result    int    // of an ExecSync: the exit code or, negative, the code of an error
	some      bool   // a list of some containers only
}

// TagConn implements stats.Handler.
func (handler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (handler) HandleConn(context.Context, stats.ConnStats) {}

const (
	runtimeService = "/runtime.v1.RuntimeService/"
	imageService   = "/runtime.v1.ImageService/"
)

// TagRPC implements stats.Handler.
func (h handler) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	method, ok := strings.CutPrefix(info.FullMethodName, runtimeService)
	if !ok {
		if method, ok = strings.CutPrefix(info.FullMethodName, imageService); !ok {
			return ctx
		}
	}
	var stage record.Stage
	switch method {
	case "RunPodSandbox":
		stage = record.Sandbox
	case "StopPodSandbox":
		stage = record.StopSandbox
	case "CreateContainer":
		stage = record.Create
	case "StartContainer":
		stage = record.Start
	case "StopContainer":
		stage = record.Stop
	case "PullImage":
		stage = record.Pull
	case "ExecSync":
		stage = record.Probe
	case "RemovePodSandbox", "RemoveContainer", "ContainerStatus":
	case "ListPodSandbox", "ListContainers":
		if !h.source.learns() {
			return ctx
		}
	default:
		return ctx
	}
	c := &call{source: h.source, method: method, record: record.Record{Object: record.Ref{Resource: pods}, Stage: stage, Actor: "containerd"}}
	c.sync = h.source.running(traceOf(ctx))
	if c.sync != nil && stage != "" {
		c.sync.calls.Add(1)
	}
	switch stage {
	case record.Sandbox, record.StopSandbox, record.Pull: // containerd reports more about these
		c.span = &callSpan{tracing: callTracing{call: c}, context: newContext()}
		ctx = trace.ContextWithSpan(ctx, c.span)
	}
	return context.WithValue(ctx, callKey{}, c)
}

// traceOf returns the trace ID of a call's header traceparent; invalid: it has none.
func traceOf(ctx context.Context) trace.TraceID {
	md, _ := metadata.FromIncomingContext(ctx)
	if parents := md.Get("traceparent"); len(parents) == 1 && len(parents[0]) > 35 { // 00-<32 digits>-<16>-<2>
		id, _ := trace.TraceIDFromHex(parents[0][3:35])
		return id
	}
	return trace.TraceID{}
}

// HandleRPC implements stats.Handler.
func (h handler) HandleRPC(ctx context.Context, rs stats.RPCStats) {
	c, _ := ctx.Value(callKey{}).(*call)
	if c == nil {
		return
	}
	switch rs := rs.(type) {
	case *stats.Begin:
		c.start = rs.BeginTime
	case *stats.InPayload:
		c.request(rs.Payload)
	case *stats.OutPayload:
		c.answer(rs.Payload)
	case *stats.End:
		c.end(rs.EndTime, rs.Error)
	}
}

// request notes the content of a request. It keeps nothing of it except names.
func (c *call) request(message any) {
	r := &c.record
	switch m := message.(type) {
	case *criv1.RunPodSandboxRequest:
		r.Object = podOf(m.GetConfig())
	case *criv1.StopPodSandboxRequest:
		c.ofSandbox(m.GetPodSandboxId())
	case *criv1.RemovePodSandboxRequest:
		c.sandbox = m.GetPodSandboxId()
	case *criv1.CreateContainerRequest:
		r.Object, r.Name = podOf(m.GetSandboxConfig()), m.GetConfig().GetMetadata().GetName()
	case *criv1.StartContainerRequest:
		c.ofContainer(m.GetContainerId())
	case *criv1.StopContainerRequest:
		c.ofContainer(m.GetContainerId())
		c.source.stopping(m.GetContainerId())
		r.Message = fmt.Sprintf("grace period %s", time.Duration(m.GetTimeout())*time.Second)
	case *criv1.RemoveContainerRequest:
		c.container = m.GetContainerId()
	case *criv1.PullImageRequest:
		r.Object, r.Name = podOf(m.GetSandboxConfig()), m.GetImage().GetImage()
	case *criv1.ListContainersRequest:
		f := m.GetFilter()
		c.some = f.GetId() != "" || f.GetPodSandboxId() != "" || len(f.GetLabelSelector()) > 0
	case *criv1.ExecSyncRequest:
		c.ofContainer(m.GetContainerId())
		c.command = maphash.Comparable(c.source.seed, strings.Join(m.GetCmd(), "\x00"))
	}
}

// podOf returns the pod of a sandbox's configuration.
func podOf(c *criv1.PodSandboxConfig) record.Ref {
	m := c.GetMetadata()
	return record.Ref{UID: m.GetUid(), Resource: pods, Namespace: m.GetNamespace(), Name: m.GetName()}
}

func (c *call) ofSandbox(id string) {
	c.sandbox = id
	s := c.source
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.sandboxes[id]; known != nil {
		c.record.Object = known.pod
	} else if c.sync != nil {
		c.record.Object = c.sync.record.Object
	} else {
		s.unknown = true
	}
}

func (c *call) ofContainer(id string) {
	c.container = id
	s := c.source
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.containers[id]; known != nil {
		c.record.Object, c.record.Name = known.pod, known.name
	} else {
		s.unknown = true
		if c.sync != nil {
			c.record.Object = c.sync.record.Object
		}
	}
}

// answer notes the content of an answer.
func (c *call) answer(message any) {
	switch m := message.(type) {
	case *criv1.RunPodSandboxResponse:
		c.source.addSandbox(m.GetPodSandboxId(), c.record.Object)
	case *criv1.CreateContainerResponse:
		c.source.addContainer(m.GetContainerId(), c.record.Object, c.record.Name)
	case *criv1.ExecSyncResponse:
		if m.GetExitCode() != 0 {
			c.result = int(m.GetExitCode())
			c.record.Code = c.result
			c.record.Error = fmt.Sprintf("exit code %d", m.GetExitCode())
			if c.sync == nil { // a probe: what a hook writes may be secret, and is in no Event either
				c.record.Error += output(m)
			}
		}
	case *criv1.ContainerStatusResponse:
		c.source.ended(m.GetStatus())
	case *criv1.ListPodSandboxResponse:
		c.source.learnSandboxes(m.GetItems())
	case *criv1.ListContainersResponse:
		c.source.learnContainers(m.GetContainers(), !c.some)
	}
}

// maxOutput is how much of a command's output is kept, in bytes: the kubelet's Events have more.
const maxOutput = 256

// output returns what a failed command wrote, as the kubelet's Event about it does: ": text".
func output(m *criv1.ExecSyncResponse) string {
	text := m.GetStderr()
	if len(text) == 0 {
		text = m.GetStdout()
	}
	if len(text) > maxOutput {
		text = text[len(text)-maxOutput:]
	}
	if said := oneline.Of(strings.ToValidUTF8(string(text), "")); said != "" {
		return ": " + said
	}
	return ""
}

// end records a call that is over.
func (c *call) end(at time.Time, err error) {
	r := &c.record
	if err != nil {
		r.Error, c.result = status.Convert(err).Message(), -int(status.Code(err))
	}
	switch c.method {
	case "RemovePodSandbox", "RemoveContainer":
		if err == nil {
			c.source.forget(c.sandbox, c.container)
		}
		return
	case "StopPodSandbox":
		if c.source.stoppedBefore(c.sandbox, err == nil) { // the kubelet makes sure when it removes it
			return
		}
	case "ExecSync":
		if !c.source.ran(c) {
			return
		}
	case "StartContainer":
		c.source.startedIn(c.container, c.sync)
	}
	if r.Stage == "" || r.Object.UID == "" { // a list, or a pod that is not known yet
		return
	}
	r.Start, r.Duration = c.source.clock.At(c.start), at.Sub(c.start)
	if c.span != nil {
		c.span.complete(r)
	}
	c.source.sink.Add(*r)
}
