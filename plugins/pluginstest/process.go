package pluginstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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

// Pause stops a process (SIGSTOP) and waits until none of its threads runs: the signal is not there at once, and a
// thread that still runs may answer a call.
func Pause(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); !paused(t, pid); time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("process %d still runs", pid)
		}
	}
}

// paused reports whether no thread of the process runs (proc(5), the state in stat).
func paused(t testing.TB, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("the threads of process %d: %v, %v", pid, threads, err)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // it has ended
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, after, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(after, "T") {
			return false
		}
	}
	return true
}

// connection is the host's side of a plugin.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return errors.New("no plugin") }

func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}
