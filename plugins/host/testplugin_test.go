package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/proto"
	admissionv1 "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// The test binary is also the plugins of the tests, and a host that can be killed: by these variables.
const (
	modeVariable    = "TEST_PLUGIN"
	versionVariable = "TEST_PLUGIN_VERSION"
	hostVariable    = "TEST_PLUGIN_HOST" // directory
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(hostVariable); dir != "" {
		runHost(dir)
		return
	}
	mode := os.Getenv(modeVariable)
	if mode == "" {
		os.Exit(m.Run())
	}
	switch mode {
	case "garbage":
		fmt.Println("Hello, I am \x1b[31mno plugin")
		time.Sleep(time.Hour)
	case "flood":
		line := strings.Repeat("x", 3000) // no end of line, no handshake
		for {
			fmt.Print(line)
		}
	case "exit":
		fmt.Fprintln(os.Stderr, "the licence has run out")
		os.Exit(3)
	case "silent":
		time.Sleep(time.Hour)
	case "close":
		os.Stdout.Close()
		time.Sleep(time.Hour)
	case "plain":
		fmt.Println("1|1|unix|" + os.Getenv("PLUGIN_UNIX_SOCKET_DIR") + "/x|grpc")
		time.Sleep(time.Hour)
	case "elsewhere":
		fmt.Println("1|1|tcp|127.0.0.1:1|grpc|" + strings.Repeat("A", 60))
		time.Sleep(time.Hour)
	case "netrpc":
		fmt.Println("1|1|unix|" + os.Getenv("PLUGIN_UNIX_SOCKET_DIR") + "/x|netrpc|")
		time.Sleep(time.Hour)
	default:
		servePlugin(mode)
	}
}

func servePlugin(mode string) {
	version := proto.Version
	if mode == "future" {
		version = 7
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  proto.Handshake,
		VersionedPlugins: map[int]goplugin.PluginSet{version: {proto.Name: served{mode: mode}}},
		GRPCServer:       goplugin.DefaultGRPCServer,
	})
}

type served struct {
	goplugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedPluginServer
	admissionv1.UnimplementedAdmissionServer
	mode string
}

func (s served) GRPCServer(_ *goplugin.GRPCBroker, server *grpc.Server) error {
	pluginv1.RegisterPluginServer(server, s)
	admissionv1.RegisterAdmissionServer(server, s)
	return nil
}

func (served) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func (s served) Describe(_ context.Context, r *pluginv1.DescribeRequest) (*pluginv1.Description, error) {
	switch s.mode {
	case "refuse":
		return nil, status.Error(codes.InvalidArgument, "config.limit is missing")
	case "die":
		panic("no way")
	case "storage":
		return &pluginv1.Description{Kind: &pluginv1.Description_Storage{Storage: &pluginv1.StorageDescription{}}}, nil
	case "scheduling":
		return &pluginv1.Description{Kind: &pluginv1.Description_Scheduling{Scheduling: &pluginv1.SchedulingDescription{}}}, nil
	}
	if string(r.Config) == `"broken"` {
		return nil, status.Error(codes.InvalidArgument, "broken configuration")
	}
	return &pluginv1.Description{
		Version: os.Getenv(versionVariable) + string(r.Config),
		Kind:    &pluginv1.Description_Admission{Admission: &pluginv1.AdmissionDescription{}},
	}, nil
}

// Review does what the hook's name says, and answers with the version.
func (s served) Review(ctx context.Context, r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
	switch what, argument, _ := strings.Cut(r.Hook, " "); what {
	case "print":
		fmt.Println(argument)
		fmt.Fprintln(os.Stderr, argument)
	case "raw": // to the standard error that no library has replaced
		syscall.Write(2, []byte(argument+"\n"))
	case "sleep":
		d, _ := time.ParseDuration(argument)
		select {
		case <-time.After(d):
		case <-ctx.Done(): // the host may learn of its deadline later
			return nil, ctx.Err()
		}
	case "exit":
		code, _ := strconv.Atoi(argument)
		os.Exit(code)
	case "panic":
		go panic(argument)
		time.Sleep(time.Hour)
	case "fork": // a process that leaves the session, as daemons do
		c := exec.Command("/bin/sleep", argument)
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			return nil, err
		}
	case "eat":
		var kept [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(i)
			}
			kept = append(kept, b)
			if len(kept) > 1<<12 {
				return nil, status.Error(codes.ResourceExhausted, "has eaten 4 GiB")
			}
		}
	case "big":
		n, _ := strconv.Atoi(argument)
		return &admissionv1.ReviewResponse{Review: make([]byte, n)}, nil
	case "environment":
		return &admissionv1.ReviewResponse{Review: []byte(strings.Join(os.Environ(), "\n"))}, nil
	case "attack": // its directory, as root will write to it: the answer lists all that works
		const dir = "/proc/self/fd/4/"
		var done []string
		for what, try := range map[string]func() error{
			"rename":  func() error { return os.Rename(dir+"user", dir+"away") },
			"replace": func() error { return errors.Join(os.RemoveAll(dir+"user"), os.Symlink(argument, dir+"user")) },
			"write":   func() error { return os.WriteFile(dir+"user/client.key", nil, 0o600) },
			"create":  func() error { return os.Symlink(argument, dir+"user/client.key.tmp") },
			"chmod":   func() error { return os.Chmod(dir+"user", 0o777) },
			"exe":     func() error { return os.Rename(dir+"exe", dir+"exe.away") },
		} {
			if try() == nil {
				done = append(done, what)
			}
		}
		slices.Sort(done)
		return &admissionv1.ReviewResponse{Review: []byte(strings.Join(done, " "))}, nil
	case "read":
		content, err := os.ReadFile(argument)
		if err != nil {
			content = []byte(err.Error())
		}
		return &admissionv1.ReviewResponse{Review: content}, nil
	case "self":
		return &admissionv1.ReviewResponse{Review: []byte(fmt.Sprint(os.Getpid(), " ", os.Getuid(), " ", os.Getgid()))}, nil
	}
	return &admissionv1.ReviewResponse{Review: []byte(os.Getenv(versionVariable))}, nil
}
