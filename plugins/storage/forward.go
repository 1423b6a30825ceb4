package storage

import (
	"context"
	"errors"
	"io"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
)

// processTimeout is how long a call waits for a process: as long as a replacement or a quick restart takes. Callers of
// a driver retry anyway.
const processTimeout = 5 * time.Second

// forwarder hands calls to whatever process serves a plugin now. It knows no message: bytes go through as they are,
// so that a driver may speak a newer CSI than Kubelith.
type forwarder struct{ plugin plugins.Plugin }

// NewForwarder returns a server without its own services, which forwards every call to the plugin. calls sees them,
// with each message as a *mem.BufferSlice; nil: nothing does.
func NewForwarder(p plugins.Plugin, calls stats.Handler) *grpc.Server {
	options := []grpc.ServerOption{grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(forwarder{p}.handle)}
	if calls != nil {
		options = append(options, grpc.StatsHandler(calls))
	}
	return grpc.NewServer(options...)
}

func (f forwarder) handle(_ any, caller grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(caller)
	return f.call(caller.Context(), path.Base(method), func(ctx context.Context, i plugins.Instance) error {
		return relay(ctx, i.Conn, method, caller)
	})
}

// call is Plugin.Call that waits a little for a process.
func (f forwarder) call(ctx context.Context, method string, do func(context.Context, plugins.Instance) error) error {
	timeout := time.After(processTimeout)
	for {
		next := f.plugin.Next()
		err := f.plugin.Call(ctx, method, do)
		var none *plugins.NotRunningError
		if !errors.As(err, &none) {
			return err
		}
		select {
		case <-next:
		case <-timeout:
			return status.Error(codes.Unavailable, none.Error())
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// relay makes the caller's call on conn: messages, metadata and status, both ways.
func relay(ctx context.Context, conn grpc.ClientConnInterface, method string, caller grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	driver, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodecV2(raw{}))
	if err != nil {
		return err
	}
	go send(caller, driver) // ends with the call
	header, err := driver.Header()
	if err == nil && header != nil {
		err = caller.SetHeader(header)
	}
	for err == nil {
		var message mem.BufferSlice
		if err = driver.RecvMsg(&message); err == nil {
			err = caller.SendMsg(&message)
		}
	}
	caller.SetTrailer(driver.Trailer())
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// send forwards the caller's messages until it has sent all, or the call has ended.
func send(caller grpc.ServerStream, driver grpc.ClientStream) {
	for {
		var message mem.BufferSlice
		if err := caller.RecvMsg(&message); err != nil {
			_ = driver.CloseSend() // the other direction reports what failed, if anything
			return
		}
		if driver.SendMsg(&message) != nil {
			return
		}
	}
}

// raw is the codec of messages that are not decoded. It has the name of the real one, which both ends use.
type raw struct{}

var _ encoding.CodecV2 = raw{}

// Name implements encoding.CodecV2.
func (raw) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (raw) Marshal(v any) (mem.BufferSlice, error) { return *v.(*mem.BufferSlice), nil }

// Unmarshal implements encoding.CodecV2. gRPC gives its own reference back when this returns.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}
