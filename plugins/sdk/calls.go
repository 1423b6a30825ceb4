package sdk

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// methods are the unary methods of a plugin's services, by their full names.
type methods map[string]method

type method struct {
	handler grpc.MethodHandler
	server  any
}

// registrar notes the methods of the services that it registers.
type registrar struct {
	grpc.ServiceRegistrar
	methods methods
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(d *grpc.ServiceDesc, server any) {
	for _, m := range d.Methods {
		r.methods["/"+d.ServiceName+"/"+m.MethodName] = method{m.Handler, server}
	}
	r.ServiceRegistrar.RegisterService(d, server)
}

// Calls implements pluginv1.PluginServer. It ends with the host's end of the stream, or with what gRPC says of a message.
func (s *service) Calls(stream grpc.BidiStreamingServer[pluginv1.CallRequest, pluginv1.CallResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(s.methods.call(stream.Context(), request)); err != nil {
			return err
		}
	}
}

// call runs a method as the gRPC server does.
func (m methods) call(ctx context.Context, r *pluginv1.CallRequest) *pluginv1.CallResponse {
	message, err := m.invoke(ctx, r)
	if err == nil {
		return &pluginv1.CallResponse{Message: message}
	}
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	return &pluginv1.CallResponse{Code: uint32(s.Code()), Reason: s.Message()}
}

func (m methods) invoke(ctx context.Context, r *pluginv1.CallRequest) ([]byte, error) {
	method, ok := m[r.GetMethod()]
	if !ok {
		return nil, status.Error(codes.Unimplemented, fmt.Sprintf("this plugin has no method %s", r.GetMethod()))
	}
	if timeout := time.Duration(r.GetTimeoutNs()); timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	decode := func(into any) error { return proto.Unmarshal(r.GetMessage(), into.(proto.Message)) }
	answer, err := method.handler(method.server, ctx, decode, nil)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(answer.(proto.Message))
}
