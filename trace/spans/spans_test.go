package spans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/containerd/containerd/v2/pkg/tracing"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubelith.io/kubelith/trace/record"
)

// list is a Sink.
type list struct{ records []record.Record }

func (l *list) Add(r record.Record)    { l.records = append(l.records, r) }
func (l *list) Describe(record.Object) {}

// want compares what was recorded since with lines of "stage name: message; error".
func (l *list) want(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, r := range l.records {
		text := strings.TrimSpace(string(r.Stage) + " " + r.Name)
		if r.Message != "" {
			text += ": " + r.Message
		}
		if r.Error != "" {
			text += "; " + r.Error
		}
		got = append(got, text)
		if r.Object != web && r.Object != claim {
			t.Errorf("%s is of %+v", text, r.Object)
		}
		if now := time.Now().UnixNano(); r.Start > now || r.Start < now-int64(time.Hour) {
			t.Errorf("%s started at %d", text, r.Start)
		}
	}
	l.records = nil
	if !slices.Equal(got, want) {
		t.Errorf("recorded\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

var (
	web   = record.Ref{UID: "u1", Resource: "pods", Namespace: "default", Name: "web"}
	claim = record.Ref{UID: "c1", Resource: "persistentvolumeclaims", Namespace: "default", Name: "data"}
)

// node is a kubelet and its runtime in a test.
type node struct {
	list
	source  *Source
	kubelet trace.Tracer
}

func newNode(next trace.TracerProvider) *node {
	n := &node{}
	n.source = New(&n.list, record.NewClock())
	n.kubelet = n.source.Provider(next).Tracer("k8s.io/kubernetes/pkg/kubelet")
	return n
}

// sync runs f in a span of the kubelet, with the context that a call of its CRI client has on the server's side.
func (n *node) sync(name, why string, failure error, f func(ctx context.Context)) {
	attributes := []attribute.KeyValue{attribute.String(podUID, web.UID), attribute.String(podName, web.Name), attribute.String(podNamespace, web.Namespace)}
	if why != "" {
		attributes = append(attributes, attribute.String(updateType, why))
	}
	ctx, span := n.kubelet.Start(context.Background(), name, trace.WithAttributes(attributes...))
	ctx, client := n.kubelet.Start(ctx, "runtime.v1.RuntimeService/Call") // by otelgrpc
	c := trace.SpanContextFromContext(ctx)
	f(metadata.NewIncomingContext(context.Background(), metadata.Pairs("traceparent", fmt.Sprintf("00-%s-%s-%s", c.TraceID(), c.SpanID(), c.TraceFlags()))))
	client.End()
	if failure != nil {
		span.RecordError(failure)
		span.SetStatus(codes.Error, failure.Error())
	}
	span.End()
}

// rpc makes a call as a gRPC server does. work is what the runtime does; nil: nothing that it reports.
func rpc(ctx context.Context, h stats.Handler, method string, request, answer any, err error, work func(ctx context.Context)) {
	ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: method})
	start := time.Now()
	h.HandleRPC(ctx, &stats.InHeader{})
	h.HandleRPC(ctx, &stats.Begin{BeginTime: start})
	h.HandleRPC(ctx, &stats.InPayload{Payload: request})
	if work != nil {
		work(ctx)
	}
	if err == nil {
		h.HandleRPC(ctx, &stats.OutPayload{Payload: answer})
	}
	h.HandleRPC(ctx, &stats.End{BeginTime: start, EndTime: time.Now(), Error: err})
}

func (n *node) cri(ctx context.Context, method string, request, answer any, err error, work func(context.Context)) {
	service := runtimeService
	if method == "PullImage" {
		service = imageService
	}
	rpc(ctx, n.source.Handler(), service+method, request, answer, err, work)
}

func config() *criv1.PodSandboxConfig {
	return &criv1.PodSandboxConfig{Metadata: &criv1.PodSandboxMetadata{Uid: web.UID, Namespace: web.Namespace, Name: web.Name}}
}

// network is what containerd does in RunPodSandbox.
func network(failure error) func(context.Context) {
	return func(ctx context.Context) {
		ctx, run := tracing.StartSpan(ctx, "cri.sandbox.run")
		defer run.End()
		_, setup := tracing.StartSpan(ctx, "cni.setup_pod_network")
		setup.SetAttributes(tracing.Attribute("sandbox.ip", "10.42.0.9"))
		if failure != nil {
			setup.RecordError(failure)
		}
		setup.End()
	}
}

func (n *node) runSandbox(ctx context.Context, failure error) {
	n.cri(ctx, "RunPodSandbox", &criv1.RunPodSandboxRequest{Config: config()}, &criv1.RunPodSandboxResponse{PodSandboxId: "s1"}, failure, network(failure))
}

func (n *node) createContainer(ctx context.Context, name string) {
	n.cri(ctx, "CreateContainer", &criv1.CreateContainerRequest{PodSandboxId: "s1", SandboxConfig: config(), Config: &criv1.ContainerConfig{
		Metadata: &criv1.ContainerMetadata{Name: name}, Command: []string{"secret"}, Envs: []*criv1.KeyValue{{Key: "PASSWORD", Value: []byte("secret")}},
	}}, &criv1.CreateContainerResponse{ContainerId: "c-" + name}, nil, nil)
}

func (n *node) startContainer(ctx context.Context, name string, failure error) {
	n.cri(ctx, "StartContainer", &criv1.StartContainerRequest{ContainerId: "c-" + name}, &criv1.StartContainerResponse{}, failure, nil)
}

func (n *node) exec(ctx context.Context, name, command string, exit int32, output string, failure error) {
	n.cri(ctx, "ExecSync", &criv1.ExecSyncRequest{ContainerId: "c-" + name, Cmd: []string{command}},
		&criv1.ExecSyncResponse{ExitCode: exit, Stdout: []byte(output)}, failure, nil)
}

func TestPod(t *testing.T) {
	n := newNode(noop.NewTracerProvider())
	outside := context.Background()
	n.sync(syncPod, "create", errors.New("network is not ready"), func(ctx context.Context) {
		n.runSandbox(ctx, errors.New("no network"))
	})
	n.want(t, "sync began", "cni ADD: 10.42.0.9; no network", "sandbox; no network", "sync create; network is not ready")

	n.sync(syncPod, "update", nil, func(ctx context.Context) {
		n.runSandbox(ctx, nil)
		n.cri(ctx, "PullImage", &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: "example.com/a:1"}, SandboxConfig: config(), Auth: &criv1.AuthConfig{Password: "secret"}},
			&criv1.PullImageResponse{}, nil, func(ctx context.Context) {
				inner, fetch := tracing.StartSpan(ctx, "pull.fetch")
				_, layer := tracing.StartSpan(inner, "pkg.unpack.unpacker.unpackLayer")
				layer.SetAttributes(tracing.Attribute("layer.media.digest", "sha256:1"))
				layer.End()
				fetch.End()
				tracing.SpanFromContext(ctx).SetAttributes(tracing.Attribute("image.size.bytes", int64(42)))
			})
		pull := n.records[len(n.records)-1]
		if pull.Bytes != 42 || len(pull.Steps) != 1 || pull.Steps[0].Name != "unpack" || pull.Steps[0].Detail != "sha256:1" || pull.Steps[0].Offset < 0 {
			t.Errorf("the pull has %d bytes and the steps %+v", pull.Bytes, pull.Steps)
		}
		n.createContainer(ctx, "main")
		n.startContainer(ctx, "main", nil)
		n.exec(ctx, "main", "warm up", 0, "", nil)
	})
	n.want(t, "cni ADD: 10.42.0.9", "sandbox", "pull example.com/a:1", "create main", "start main", "hook postStart main", "sync update")

	for i := range 3 {
		n.exec(outside, "main", "test -e ready", 1, fmt.Sprintf("  not\nyet %d", i), nil)
	}
	n.exec(outside, "main", "test -e alive", 0, "", nil)
	n.exec(outside, "main", "test -e ready", 0, "", nil)
	n.exec(outside, "main", "test -e ready", 0, "", nil)
	n.exec(outside, "main", "test -e ready", 0, "", context.DeadlineExceeded)
	n.want(t, "probe main; exit code 1: not yet 0", "probe main", "probe main", "probe main; context deadline exceeded")

	n.sync(syncPod, "sync", nil, func(context.Context) {})
	n.want(t)

	n.sync(syncTerminatingPod, "", nil, func(ctx context.Context) {
		n.exec(ctx, "main", "say goodbye", 2, "the password is swordfish", nil)
		n.cri(ctx, "StopContainer", &criv1.StopContainerRequest{ContainerId: "c-main", Timeout: 30}, &criv1.StopContainerResponse{}, nil, nil)
		n.exec(outside, "main", "test -e ready", 0, "", errors.New("not running"))
		n.stopSandbox(ctx)
	})
	n.stopSandbox(outside) // by the garbage collection
	n.sync(syncTerminatedPod, "", nil, func(context.Context) {})
	n.want(t, "terminate began", "hook preStop main; exit code 2", "stop main: grace period 30s", "cni DEL", "stop-sandbox", "terminate terminating", "terminate terminated")

	n.cri(outside, "RemoveContainer", &criv1.RemoveContainerRequest{ContainerId: "c-main"}, &criv1.RemoveContainerResponse{}, nil, nil)
	n.cri(outside, "RemovePodSandbox", &criv1.RemovePodSandboxRequest{PodSandboxId: "s1"}, &criv1.RemovePodSandboxResponse{}, nil, nil)
	if len(n.source.containers)+len(n.source.sandboxes)+len(n.source.syncs) != 0 {
		t.Errorf("a pod that is gone is kept: %+v", n.source)
	}
}

func (n *node) stopSandbox(ctx context.Context) {
	n.cri(ctx, "StopPodSandbox", &criv1.StopPodSandboxRequest{PodSandboxId: "s1"}, &criv1.StopPodSandboxResponse{}, nil, func(ctx context.Context) {
		tracing.SpanFromContext(ctx).AddEvent("start pod network teardown")
		tracing.SpanFromContext(ctx).AddEvent("finished pod network teardown")
	})
}

// What runs is found again by a process that did not start it.
func TestEarlierProcess(t *testing.T) {
	n := newNode(noop.NewTracerProvider())
	ctx := context.Background()
	n.exec(ctx, "main", "probe", 0, "", nil)
	n.want(t)
	labels := map[string]string{labelUID: web.UID, labelName: web.Name, labelNamespace: web.Namespace, labelContainer: "main"}
	lists := func(filter *criv1.ContainerFilter, ids ...string) {
		n.cri(ctx, "ListPodSandbox", &criv1.ListPodSandboxRequest{}, &criv1.ListPodSandboxResponse{Items: []*criv1.PodSandbox{{Id: "s1", Labels: labels}}}, nil, nil)
		var all []*criv1.Container
		for _, id := range ids {
			all = append(all, &criv1.Container{Id: id, PodSandboxId: "s1", Labels: labels})
		}
		n.cri(ctx, "ListContainers", &criv1.ListContainersRequest{Filter: filter}, &criv1.ListContainersResponse{Containers: all}, nil, nil)
	}
	lists(&criv1.ContainerFilter{PodSandboxId: "s2"})
	if !n.source.learns() {
		t.Error("a list of some containers is taken for all")
	}
	lists(nil, "c-main")
	if n.source.learns() {
		t.Error("each list is read")
	}
	n.exec(ctx, "main", "probe", 0, "", nil)
	n.sync(syncTerminatingPod, "", nil, n.stopSandbox)
	n.want(t, "probe main", "terminate began", "cni DEL", "stop-sandbox", "terminate terminating")

	n.exec(ctx, "other", "probe", 0, "", nil)
	if n.want(t); !n.source.learns() {
		t.Error("an unknown container is not looked for")
	}
}

// upstream is a provider that a user configured.
type upstream struct {
	noop.TracerProvider
	started, ended []string
}

func (u *upstream) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return &upstreamTracer{provider: u}
}

type upstreamTracer struct {
	noop.Tracer
	provider *upstream
}

func (u *upstreamTracer) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	u.provider.started = append(u.provider.started, name)
	parent := trace.SpanContextFromContext(ctx)
	c := trace.NewSpanContext(trace.SpanContextConfig{TraceID: parent.TraceID(), SpanID: trace.SpanID{byte(len(u.provider.started))}})
	if !parent.IsValid() {
		c = c.WithTraceID(trace.TraceID{7})
	}
	s := &upstreamSpan{tracer: u, name: name, context: c}
	return trace.ContextWithSpan(ctx, s), s
}

type upstreamSpan struct {
	noop.Span
	tracer  *upstreamTracer
	name    string
	context trace.SpanContext
}

func (u *upstreamSpan) SpanContext() trace.SpanContext { return u.context }
func (u *upstreamSpan) End(...trace.SpanEndOption) {
	u.tracer.provider.ended = append(u.tracer.provider.ended, u.name)
}

// The user's own tracing has all spans, and the calls still belong to their sync.
func TestConfiguredTracing(t *testing.T) {
	user := &upstream{}
	n := newNode(user)
	n.sync(syncPod, "create", nil, func(ctx context.Context) {
		n.createContainer(ctx, "main")
		n.startContainer(ctx, "main", errors.New("no such file"))
	})
	n.want(t, "sync began", "create main", "start main; no such file", "sync create")
	if want := []string{"runtime.v1.RuntimeService/Call", syncPod}; !slices.Equal(user.ended, want) || len(user.started) != 2 {
		t.Errorf("the user's provider started %q and ended %q, want %q", user.started, user.ended, want)
	}
}

func bytesOf(m proto.Message) *mem.BufferSlice {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return &mem.BufferSlice{mem.SliceBuffer(data)}
}

func TestVolumes(t *testing.T) {
	n := newNode(noop.NewTracerProvider())
	driver := func(method string, request, answer proto.Message, err error) {
		rpc(context.Background(), n.source.CSI("disk.example.com"), "/csi.v1.Any/"+method, bytesOf(request), bytesOf(answer), err, nil)
	}
	parameters := map[string]string{"csi.storage.k8s.io/pvc/namespace": claim.Namespace, "csi.storage.k8s.io/pvc/name": claim.Name}
	driver("CreateVolume", &csi.CreateVolumeRequest{Name: "pvc-c1", Parameters: parameters, Secrets: map[string]string{"a": "secret"}},
		&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v1"}}, nil)
	driver("ControllerPublishVolume", &csi.ControllerPublishVolumeRequest{VolumeId: "v1", NodeId: "node-1"}, &csi.ControllerPublishVolumeResponse{}, nil)
	driver("ControllerGetCapabilities", &csi.ControllerGetCapabilitiesRequest{}, &csi.ControllerGetCapabilitiesResponse{}, nil)
	n.want(t, "volume CreateVolume: pvc-c1", "volume ControllerPublishVolume: v1")

	const target = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pvc-c1/mount"
	n.sync(syncPod, "create", nil, func(context.Context) {
		driver("NodeStageVolume", &csi.NodeStageVolumeRequest{VolumeId: "v1"}, nil, errors.New("busy"))
		driver("NodeStageVolume", &csi.NodeStageVolumeRequest{VolumeId: "v1"}, &csi.NodeStageVolumeResponse{}, nil)
		driver("NodePublishVolume", &csi.NodePublishVolumeRequest{VolumeId: "v1", TargetPath: target}, &csi.NodePublishVolumeResponse{}, nil)
	})
	n.want(t, "sync began", "volume NodeStageVolume: pvc-c1; busy", "volume NodeStageVolume: pvc-c1", "volume NodePublishVolume: pvc-c1", "sync create")

	n.sync(syncTerminatedPod, "", nil, func(context.Context) {
		driver("NodeUnpublishVolume", &csi.NodeUnpublishVolumeRequest{VolumeId: "v1", TargetPath: target}, &csi.NodeUnpublishVolumeResponse{}, nil)
		driver("NodeUnstageVolume", &csi.NodeUnstageVolumeRequest{VolumeId: "v1"}, &csi.NodeUnstageVolumeResponse{}, nil)
	})
	driver("ControllerUnpublishVolume", &csi.ControllerUnpublishVolumeRequest{VolumeId: "v1"}, &csi.ControllerUnpublishVolumeResponse{}, nil)
	driver("DeleteVolume", &csi.DeleteVolumeRequest{VolumeId: "v1"}, &csi.DeleteVolumeResponse{}, nil)
	n.want(t, "volume NodeUnpublishVolume: pvc-c1", "volume NodeUnstageVolume: v1", "terminate terminated",
		"volume ControllerUnpublishVolume: v1", "volume DeleteVolume: v1")
	if v := n.source.volumes; len(v.claims)+len(v.pods)+len(v.staged) != 0 {
		t.Errorf("a volume that is gone is kept: %+v", v)
	}
}

// TestUsed: what a container's cgroup counted is in the record of its end.
func TestUsed(t *testing.T) {
	n := newNode(noop.NewTracerProvider())
	for name, c := range map[string]struct {
		oom  bool
		code int32
		want string
	}{
		"killed for memory": {true, 137, "run main: OOMKilled; exit code 137: OOMKilled"},
		"killed":            {false, 137, "run main: Error; exit code 137: Error"},
		"its child killed":  {true, 1, "run main: Error; exit code 1: Error"},
	} {
		t.Run(name, func(t *testing.T) {
			n.sync(syncPod, "update", nil, func(ctx context.Context) { n.createContainer(ctx, "main") })
			n.records = nil
			n.source.Used("c-main", 64<<20, c.oom)
			n.source.Used("pause", 1, false) // of no container
			end := time.Now().UnixNano()
			for range 2 { // the kubelet requests it again
				n.cri(context.Background(), "ContainerStatus", &criv1.ContainerStatusRequest{ContainerId: "c-main"}, &criv1.ContainerStatusResponse{Status: &criv1.ContainerStatus{
					Id: "c-main", State: criv1.ContainerState_CONTAINER_EXITED, StartedAt: end - 1000, FinishedAt: end, ExitCode: c.code, Reason: "Error"}}, nil, nil)
			}
			if len(n.records) == 1 && n.records[0].Peak != 64<<20 {
				t.Errorf("the peak is %d", n.records[0].Peak)
			}
			n.want(t, c.want)
		})
	}
}

func TestPodOfPath(t *testing.T) {
	for path, want := range map[string][2]string{
		"/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pvc-c1/mount":              {"u1", "pvc-c1"},
		"/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-c1/u1":   {"u1", "pvc-c1"},
		"/var/lib/kubelet/plugins/kubernetes.io/csi/disk.example.com/0a1b/globalmount": {},
		"/var/lib/kubelet/pods/u1/volumes":                                             {},
		"":                                                                             {},
	} {
		if uid, volume := podOfPath(path); [2]string{uid, volume} != want {
			t.Errorf("%s is of pod %q, volume %q, want %q", path, uid, volume, want)
		}
	}
}

// FuzzCSI gives the handler messages that a driver's caller might send.
func FuzzCSI(f *testing.F) {
	f.Add("NodePublishVolume", []byte("\x0a\x02v1\x22\x03/a/"))
	f.Add("DeleteVolume", []byte("\x12\xff"))
	f.Fuzz(func(t *testing.T, method string, message []byte) {
		n := newNode(noop.NewTracerProvider())
		body := &mem.BufferSlice{mem.SliceBuffer(message)}
		rpc(context.Background(), n.source.CSI("d"), "/csi.v1.Any/"+method, body, body, nil, nil)
	})
}
