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

// window is the flow control window in bytes, for each stream and for the connection. A fixed one saves the pings with
// which gRPC measures the connection: a unix socket has no bandwidth to learn.
const window = 1 << 20

// describe handles Describe; register adds the services of the kind.
type (
	describe func(*pluginv1.DescribeRequest) (*pluginv1.Description, error)
	register func(grpc.ServiceRegistrar)
)

// serve runs the plugin until the host stops it or has died. It must be the last call of main.
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

// newServer creates the gRPC server of the process with go-plugin's options (TLS) and the SDK's.
func newServer(given []grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(given,
		grpc.MaxRecvMsgSize(proto.MaxRequestSize),
		grpc.MaxSendMsgSize(proto.MaxResponseSize),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.NumStreamWorkers(2), // reused goroutines: a new one per call has to grow its stack each time
	)...)
}

// endWith ends the process at the end of file of its standard input: the host holds the other end of the pipe, so it
// closes however the host dies. Other inputs (a terminal, /dev/null) are not watched.
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

// newLog returns a logger whose lines the host parses with level and fields. It writes to the process's original
// standard error: go-plugin replaces os.Stderr.
func newLog() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr, JSONFormat: true})
}

// grpcPlugin returns what go-plugin serves: the Plugin service and the services of the kind.
func grpcPlugin(m metrics, d describe, r register) *service {
	return &service{metrics: m, describe: d, register: r}
}

type service struct {
	plugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedPluginServer
	metrics   metrics
	describe  describe
	register  register
	described sync.Once
}

var (
	_ plugin.GRPCPlugin     = (*service)(nil)
	_ pluginv1.PluginServer = (*service)(nil)
)

// GRPCServer implements plugin.GRPCPlugin.
func (s *service) GRPCServer(_ *plugin.GRPCBroker, server *grpc.Server) error {
	pluginv1.RegisterPluginServer(server, s)
	s.register(server)
	return nil
}

// GRPCClient implements plugin.GRPCPlugin; only a host has one.
func (s *service) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("a plugin is not a host")
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
	// Return the memory of the start to the system: most plugins are idle most of the time.
	s.described.Do(func() { go debug.FreeOSMemory() })
	return d, nil
}
