package host

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// maxIdleLanes stay open for calls to come.
const maxIdleLanes = 16

// lanes is the connection to a plugin that serves Calls: calls of Kubelith's own services go on streams that stay open, each the
// way of one call at a time. gRPC's set-up of a stream is half the time of a small call.
type lanes struct {
	grpc.ClientConnInterface

	mu   sync.Mutex
	idle []*lane // the last is taken first: its memory is warm
}

var _ grpc.ClientConnInterface = (*lanes)(nil)

// lane is a stream of Calls.
type lane struct {
	conn   grpc.ClientConnInterface
	ctx    context.Context
	cancel func()
	stream grpc.BidiStreamingClient[pluginv1.CallRequest, pluginv1.CallResponse] // nil before the first call
}

// Invoke implements grpc.ClientConnInterface. Metadata and options are not for calls of our own services, and are not carried.
func (l *lanes) Invoke(ctx context.Context, method string, request, response any, options ...grpc.CallOption) error {
	if !strings.HasPrefix(method, "/kubelith.") {
		return l.ClientConnInterface.Invoke(ctx, method, request, response, options...)
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	message, err := proto.Marshal(request.(proto.Message))
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	call := &pluginv1.CallRequest{Method: method, Message: message}
	if deadline, ok := ctx.Deadline(); ok {
		call.TimeoutNs = max(1, time.Until(deadline).Nanoseconds())
	}
	answer, err := l.exchange(ctx, call)
	switch {
	case err != nil:
		return err
	case answer.GetCode() != 0:
		return status.Error(codes.Code(answer.GetCode()), answer.GetReason())
	}
	if err := proto.Unmarshal(answer.GetMessage(), response.(proto.Message)); err != nil {
		return status.Error(codes.Internal, "its answer cannot be read: "+err.Error())
	}
	return nil
}

// exchange has one call made on an idle lane, or on a new one. Only a lane that has answered is used again.
func (l *lanes) exchange(ctx context.Context, call *pluginv1.CallRequest) (*pluginv1.CallResponse, error) {
	way := l.take()
	stop := context.AfterFunc(ctx, way.cancel)
	answer, err := way.exchange(call)
	givenUp := !stop()
	if givenUp || err != nil {
		way.cancel()
	} else {
		l.release(way)
	}
	if givenUp { // an answer that came at the last moment is too late as well
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return answer, err
}

// take returns an idle lane, or one whose stream the first call opens.
func (l *lanes) take() *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.idle) - 1; last >= 0 {
		way := l.idle[last]
		l.idle = l.idle[:last]
		return way
	}
	way := &lane{conn: l.ClientConnInterface}
	way.ctx, way.cancel = context.WithCancel(context.Background()) // not the call's: it stays for others
	return way
}

func (l *lanes) release(way *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) < maxIdleLanes {
		l.idle = append(l.idle, way)
		return
	}
	way.cancel()
}

func (w *lane) exchange(call *pluginv1.CallRequest) (_ *pluginv1.CallResponse, err error) {
	if w.stream == nil {
		if w.stream, err = pluginv1.NewPluginClient(w.conn).Calls(w.ctx); err != nil {
			return nil, err
		}
	}
	// io.EOF: the stream has ended, Recv knows why.
	if err := w.stream.Send(call); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	answer, err := w.stream.Recv()
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.Internal, "it ended the stream of its calls instead of answering")
	}
	return answer, err
}
