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

const (
	// patience is how long a call waits for a process: as long as a replacement or a quick restart takes. Who calls
	// a driver tries again anyway.
	patience = 5 * time.Second
	// lookEvery is how often it looks.
	lookEvery = 50 * time.Millisecond
)

// forwarder hands calls to whatever process serves a plugin now. It knows no message: bytes go through as they are,
// so that a driver may speak a newer CSI than Kubelith.
type forwarder struct{ plugin plugins.Plugin }

// NewForwarder returns a server without services of its own, which hands every call to the plugin. calls sees them, with
// each message as a *mem.BufferSlice; nil: nothing does.
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
	deadline := time.Now().Add(patience)
	for {
		err := f.plugin.Call(ctx, method, do)
		var none *plugins.NotRunningError
		if !errors.As(err, &none) {
			return err
		}
		if time.Now().After(deadline) {
			return status.Error(codes.Unavailable, none.Error())
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(lookEvery):
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

// send hands over what the caller says until it has said all, or the call has ended.
func send(caller grpc.ServerStream, driver grpc.ClientStream) {
	for {
		var message mem.BufferSlice
		if err := caller.RecvMsg(&message); err != nil {
			_ = driver.CloseSend() // what failed, if it did, is what the other direction says
			return
		}
		if driver.SendMsg(&message) != nil {
			return
		}
	}
}

// raw is the codec of messages that nobody looks into. It has the name of the real one, which both ends speak.
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
