package containerd

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/plugin"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubelith.io/kubelith/base/names"
)

// keepService keeps the CRI service that containerd makes, for RuntimeService.
func (s *Server) keepService() {
	wrap(criPlugin, func(_ *plugin.InitContext, service any) (any, error) {
		var ok bool
		if s.service, ok = service.(criv1.RuntimeServiceServer); !ok {
			return nil, fmt.Errorf("containerd's plugin %s, a %T, is no CRI service", criPlugin, service)
		}
		return service, nil
	})
}

// RuntimeService returns the container runtime for the kubelet in this process, given a client of the socket. What the
// kubelet asks every second, or about each container, becomes a call of a function; all else still goes over the
// socket. It must be called after the component is ready. See docs/adr/073-cri-by-calls.md.
func (s *Server) RuntimeService(socket internalapi.RuntimeService) internalapi.RuntimeService {
	return &runtimeService{RuntimeService: socket, service: s.service, calls: s.opts.Calls}
}

// runtimeService asks service, or the socket where service fails: upstream's client reports an error as it does.
type runtimeService struct {
	internalapi.RuntimeService
	service criv1.RuntimeServiceServer
	calls   stats.Handler // sees these calls, too
}

// ListPodSandbox implements internalapi.RuntimeService.
func (r *runtimeService) ListPodSandbox(ctx context.Context, filter *criv1.PodSandboxFilter) ([]*criv1.PodSandbox, error) {
	answer, err := ask(ctx, r, criv1.RuntimeService_ListPodSandbox_FullMethodName, r.service.ListPodSandbox, &criv1.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return r.RuntimeService.ListPodSandbox(ctx, filter)
	}
	return answer.GetItems(), nil
}

// PodSandboxStatus implements internalapi.RuntimeService.
func (r *runtimeService) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*criv1.PodSandboxStatusResponse, error) {
	answer, err := ask(ctx, r, criv1.RuntimeService_PodSandboxStatus_FullMethodName, r.service.PodSandboxStatus,
		&criv1.PodSandboxStatusRequest{PodSandboxId: id, Verbose: verbose})
	if err != nil {
		return r.RuntimeService.PodSandboxStatus(ctx, id, verbose)
	}
	return answer, nil
}

// ListContainers implements internalapi.RuntimeService.
func (r *runtimeService) ListContainers(ctx context.Context, filter *criv1.ContainerFilter) ([]*criv1.Container, error) {
	answer, err := ask(ctx, r, criv1.RuntimeService_ListContainers_FullMethodName, r.service.ListContainers, &criv1.ListContainersRequest{Filter: filter})
	if err != nil {
		return r.RuntimeService.ListContainers(ctx, filter)
	}
	return answer.GetContainers(), nil
}

// ContainerStatus implements internalapi.RuntimeService.
func (r *runtimeService) ContainerStatus(ctx context.Context, id string, verbose bool) (*criv1.ContainerStatusResponse, error) {
	answer, err := ask(ctx, r, criv1.RuntimeService_ContainerStatus_FullMethodName, r.service.ContainerStatus,
		&criv1.ContainerStatusRequest{ContainerId: id, Verbose: verbose})
	if err != nil {
		return r.RuntimeService.ContainerStatus(ctx, id, verbose)
	}
	return answer, nil
}

// askTimeout is upstream's for a request that is no long one.
const askTimeout = 2 * time.Minute

// ask calls a method of the service as the gRPC server would. Neither side can change what the other one keeps: a
// filter is completed by the service, and an answer shares the configuration that it stores.
func ask[Q, A proto.Message](ctx context.Context, r *runtimeService, name string, method func(context.Context, Q) (A, error), request Q) (answer A, err error) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, names.ContainerdNamespace), askTimeout)
	defer cancel()
	if r.calls != nil {
		ctx = r.calls.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: name})
		r.calls.HandleRPC(ctx, &stats.Begin{BeginTime: time.Now()})
		r.calls.HandleRPC(ctx, &stats.InPayload{Payload: request})
		defer func() {
			if err == nil {
				r.calls.HandleRPC(ctx, &stats.OutPayload{Payload: answer})
			}
			r.calls.HandleRPC(ctx, &stats.End{EndTime: time.Now(), Error: err})
		}()
	}
	if answer, err = method(ctx, proto.CloneOf(request)); err != nil {
		return answer, err
	}
	return proto.CloneOf(answer), nil
}
