package pluginstest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"kubelith.io/kubelith/plugins/proto"
)

// Start runs a plugin's program until the test ends, with go-plugin's own host and mutual TLS, and returns a connection
// to it.
func Start(t testing.TB, cmd *exec.Cmd) *grpc.ClientConn {
	t.Helper()
	sockets, err := os.MkdirTemp("", "kl") // go-plugin leaves them; their paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	client := plugin.NewClient(&plugin.ClientConfig{
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: sockets},
		HandshakeConfig:  proto.Handshake, VersionedPlugins: map[int]plugin.PluginSet{proto.Version: {proto.Name: connection{}}},
		Cmd: cmd, AutoMTLS: true, AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC}, Logger: hclog.NewNullLogger(),
	})
	t.Cleanup(client.Kill)
	protocol, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := protocol.Dispense(proto.Name)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*grpc.ClientConn)
}

// connection is the host's side of a plugin.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return errors.New("no plugin") }

func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}
