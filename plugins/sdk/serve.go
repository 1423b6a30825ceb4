package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/proto"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// window of flow control, in bytes, for a stream and for the connection. A fixed one spares gRPC's pings that measure how
// much is on the way: on a unix socket they are a cost and find nothing.
const window = 1 << 20

// describe answers the first call; register adds the services of the kind.
type (
	describe func(*pluginv1.DescribeRequest) (*pluginv1.Description, error)
	register func(grpc.ServiceRegistrar)
)

// serve runs the plugin until the host ends it, or has ended itself. It is the last call of main.
func serve(m metrics, d describe, r register) {
	log := newLog()
	endWith(os.Stdin)
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  proto.Handshake,
		VersionedPlugins: map[int]plugin.PluginSet{proto.Version: {proto.Name: grpcPlugin(m, d, r)}},
		GRPCServer:       newServer,
		Logger:           log.ResetNamed("go-plugin"),
	})
}

// newServer makes the gRPC server of the process, with go-plugin's own options (TLS) and ours.
func newServer(given []grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(given,
		grpc.MaxRecvMsgSize(proto.MaxRequestSize),
		grpc.MaxSendMsgSize(proto.MaxResponseSize),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
	)...)
}

// endWith ends the process when nobody can write to its standard input any more: the host holds the other end of the pipe,
// so that it is closed whatever way the host dies. Other inputs (a terminal, /dev/null) say nothing.
func endWith(stdin *os.File) {
	info, err := stdin.Stat()
	if err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	go func() {
		io.Copy(io.Discard, stdin)
		os.Exit(0)
	}()
}

// newLog writes lines that the host reads with their level and fields. It keeps the standard error of the
// process: go-plugin replaces os.Stderr.
func newLog() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr, JSONFormat: true})
}

// grpcPlugin is what go-plugin serves: Describe, and the services of the kind.
func grpcPlugin(m metrics, d describe, r register) *service {
	return &service{metrics: m, describe: d, register: r, methods: methods{}}
}

type service struct {
	plugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedPluginServer
	metrics   metrics
	describe  describe
	register  register
	methods   methods // for Calls
	described sync.Once
}

var (
	_ plugin.GRPCPlugin     = (*service)(nil)
	_ pluginv1.PluginServer = (*service)(nil)
)

// GRPCServer implements plugin.GRPCPlugin.
func (s *service) GRPCServer(_ *plugin.GRPCBroker, server *grpc.Server) error {
	noted := registrar{server, s.methods}
	pluginv1.RegisterPluginServer(noted, s)
	s.register(noted)
	return nil
}

// GRPCClient implements plugin.GRPCPlugin; only a host has one.
func (s *service) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("a plugin is no host")
}

// Describe implements pluginv1.PluginServer.
func (s *service) Describe(_ context.Context, r *pluginv1.DescribeRequest) (*pluginv1.Description, error) {
	if r.GetProtocol() != proto.Version {
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("this plugin speaks protocol %d, the host asks for %d", proto.Version, r.GetProtocol()))
	}
	d, err := s.describe(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	d.Calls = true
	// What the start took and nobody needs any more: a plugin is idle most of the time.
	s.described.Do(func() { go debug.FreeOSMemory() })
	return d, nil
}
