package containerd

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc/stats"
	internalapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// service is containerd's CRI service: it completes the filters that it gets, and answers with what it keeps.
type service struct {
	criv1.UnimplementedRuntimeServiceServer
	err       error
	namespace string
	sandbox   criv1.PodSandbox
	container criv1.Container
	status    criv1.ContainerStatus
}

func (s *service) ListPodSandbox(ctx context.Context, r *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	s.namespace, _ = namespaces.Namespace(ctx)
	r.Filter.Id += "-completed"
	return &criv1.ListPodSandboxResponse{Items: []*criv1.PodSandbox{&s.sandbox}}, s.err
}

func (s *service) PodSandboxStatus(context.Context, *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	return &criv1.PodSandboxStatusResponse{Status: &criv1.PodSandboxStatus{Id: s.sandbox.Id}}, s.err
}

func (s *service) ListContainers(_ context.Context, r *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	return &criv1.ListContainersResponse{Containers: []*criv1.Container{&s.container}}, s.err
}

func (s *service) ContainerStatus(_ context.Context, r *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	s.status.Id = r.ContainerId
	return &criv1.ContainerStatusResponse{Status: &s.status}, s.err
}

// errSocket is what every call over the socket ends with.
var errSocket = errors.New("over the socket")

type socket struct{ internalapi.RuntimeService }

func (socket) ListPodSandbox(context.Context, *criv1.PodSandboxFilter) ([]*criv1.PodSandbox, error) {
	return nil, errSocket
}

func (socket) PodSandboxStatus(context.Context, string, bool) (*criv1.PodSandboxStatusResponse, error) {
	return nil, errSocket
}

func (socket) ListContainers(context.Context, *criv1.ContainerFilter) ([]*criv1.Container, error) {
	return nil, errSocket
}

func (socket) ContainerStatus(context.Context, string, bool) (*criv1.ContainerStatusResponse, error) {
	return nil, errSocket
}

func (socket) Version(context.Context, string) (*criv1.VersionResponse, error) { return nil, errSocket }

// seen collects what a handler of gRPC calls gets.
type seen struct {
	stats.Handler
	method  string
	request *criv1.ContainerStatusRequest
	answer  *criv1.ContainerStatusResponse
	order   []string
	err     error
}

func (s *seen) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	s.method = info.FullMethodName
	return ctx
}

func (s *seen) HandleRPC(_ context.Context, rs stats.RPCStats) {
	switch rs := rs.(type) {
	case *stats.Begin:
		s.order = append(s.order, "begin")
	case *stats.InPayload:
		s.order, s.request = append(s.order, "request"), rs.Payload.(*criv1.ContainerStatusRequest)
	case *stats.OutPayload:
		s.order, s.answer = append(s.order, "answer"), rs.Payload.(*criv1.ContainerStatusResponse)
	case *stats.End:
		s.order, s.err = append(s.order, "end"), rs.Error
	}
}

func TestRuntimeService(t *testing.T) {
	containerd := &service{
		sandbox:   criv1.PodSandbox{Id: "s", Labels: map[string]string{"a": "1"}},
		container: criv1.Container{Id: "c", Labels: map[string]string{"a": "1"}},
	}
	runtime := (&Server{service: containerd}).RuntimeService(socket{})

	filter := &criv1.PodSandboxFilter{Id: "s"}
	sandboxes, err := runtime.ListPodSandbox(t.Context(), filter)
	if err != nil || len(sandboxes) != 1 || sandboxes[0].Id != "s" {
		t.Fatalf("sandboxes %v, %v", sandboxes, err)
	}
	if containerd.namespace != "k8s.io" {
		t.Errorf("asked in the namespace %q", containerd.namespace)
	}
	if filter.Id != "s" {
		t.Errorf("the service has changed the kubelet's filter to %q", filter.Id)
	}
	containers, err := runtime.ListContainers(t.Context(), nil)
	if err != nil || len(containers) != 1 || containers[0].Id != "c" {
		t.Fatalf("containers %v, %v", containers, err)
	}
	sandboxes[0].Labels["a"], containers[0].Labels["a"] = "2", "2"
	if containerd.sandbox.Labels["a"] != "1" || containerd.container.Labels["a"] != "1" {
		t.Error("who gets an answer can change what the service keeps")
	}
	if s, err := runtime.PodSandboxStatus(t.Context(), "s", false); err != nil || s.Status.Id != "s" {
		t.Errorf("the sandbox's status %v, %v", s, err)
	}
	if s, err := runtime.ContainerStatus(t.Context(), "c", false); err != nil || s.Status.Id != "c" {
		t.Errorf("the container's status %v, %v", s, err)
	}
	if _, err := runtime.Version(t.Context(), ""); !errors.Is(err, errSocket) {
		t.Errorf("all else is asked over the socket, got %v", err)
	}

	containerd.err = errors.New("by a call")
	for name, ask := range map[string]func() error{
		"ListPodSandbox":   func() error { _, err := runtime.ListPodSandbox(t.Context(), filter); return err },
		"PodSandboxStatus": func() error { _, err := runtime.PodSandboxStatus(t.Context(), "s", false); return err },
		"ListContainers":   func() error { _, err := runtime.ListContainers(t.Context(), nil); return err },
		"ContainerStatus":  func() error { _, err := runtime.ContainerStatus(t.Context(), "c", false); return err },
	} {
		if err := ask(); !errors.Is(err, errSocket) {
			t.Errorf("%s: an error comes from the socket, got %v", name, err)
		}
	}
}

func TestRuntimeServiceIsSeen(t *testing.T) {
	handler := &seen{}
	containerd := &service{}
	runtime := (&Server{opts: Options{Calls: handler}, service: containerd}).RuntimeService(socket{})
	if _, err := runtime.ContainerStatus(t.Context(), "c", false); err != nil {
		t.Fatal(err)
	}
	if handler.method != criv1.RuntimeService_ContainerStatus_FullMethodName || handler.request.GetContainerId() != "c" ||
		handler.answer.GetStatus().GetId() != "c" || handler.err != nil || !slices.Equal(handler.order, []string{"begin", "request", "answer", "end"}) {
		t.Errorf("the handler has seen %+v", handler)
	}
	containerd.err = errors.New("no such container")
	handler.order = nil
	_, _ = runtime.ContainerStatus(t.Context(), "c", false)
	if !errors.Is(handler.err, containerd.err) || !slices.Equal(handler.order, []string{"begin", "request", "end"}) {
		t.Errorf("of an error, the handler has seen %+v", handler)
	}
}
