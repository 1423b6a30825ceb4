package etcd

import (
	"context"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lone serves the clients of a member that has no others, and lets their requests end before it stops or opens to
// others (OpenToPeers). etcd by itself closes connections under their requests: clients cannot know whether a write was
// done, and fail it.
type lone struct {
	server *grpc.Server
	ctx    context.Context // ends the streams
	cancel context.CancelFunc
}

// errStreamEnded ends a stream: etcd's client opens watches again on it.
var errStreamEnded = status.Error(codes.Unavailable, "etcd stops, or opens to other members")

// drainTime is how long requests may take to end before etcd is closed under them.
const drainTime = 2 * time.Second

// serveAlone changes the configuration of a member so that it serves as lone.
func (s *Server) serveAlone(cfg *embed.Config) {
	// With HTTP and gRPC on one socket, etcd closes all connections as soon as its gRPC server begins to end. Source:
	// etcd/server/embed/serve.go.
	cfg.ListenClientHttpUrls = []url.URL{{Scheme: "unix", Path: httpSocket(s.opts.Socket)}}
	l := &lone{}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	cfg.ServiceRegister = func(server *grpc.Server) {
		l.server = server
		s.lone.Store(l)
	}
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(l.stream)}
}

// httpSocket returns a path beside the clients' socket.
func httpSocket(client string) string { return filepath.Join(filepath.Dir(client), "etcd-http.sock") }

// drain ends the streams and waits for the other requests. Clients connect again with the next ones.
func (l *lone) drain() {
	if l == nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		l.server.GracefulStop()
		close(ended)
	}()
	l.cancel() // also of streams that still come
	select {
	case <-ended:
	case <-time.After(drainTime):
		l.server.Stop()
	}
}

// cut closes all connections.
func (l *lone) cut() {
	if l != nil {
		l.server.Stop()
	}
}

// stream is a grpc.StreamServerInterceptor.
func (l *lone) stream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	err := handler(server, withContext{stream, ctx})
	if err != nil && l.ctx.Err() != nil {
		return errStreamEnded
	}
	return err
}

// withContext is a stream with another context.
type withContext struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s withContext) Context() context.Context { return s.ctx }
