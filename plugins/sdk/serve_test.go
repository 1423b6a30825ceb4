package sdk

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/pluginstest"
	"kubelith.io/kubelith/plugins/proto"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// roleVariable makes the test's executable a plugin.
const roleVariable = "KUBELITH_SDK_TEST_ROLE"

func TestMain(m *testing.M) {
	if kind := os.Getenv(roleVariable); kind != "" && kind != "plugin" {
		serveCounting(kind)
		return
	}
	if os.Getenv(roleVariable) == "plugin" {
		serve(nil, func(r *pluginv1.DescribeRequest) (*pluginv1.Description, error) {
			c := configOf(r)
			var settings struct {
				Fail string `json:"fail"`
			}
			if err := c.Decode(&settings); err != nil {
				return nil, err
			}
			if settings.Fail != "" {
				return nil, errors.New(settings.Fail)
			}
			c.Log.Info("described", "node", c.NodeName)
			return &pluginv1.Description{Version: "of " + c.Name}, nil
		}, func(grpc.ServiceRegistrar) {})
		return
	}
	os.Exit(m.Run())
}

// start runs the test's executable as a plugin.
func start(t *testing.T) pluginv1.PluginClient { return startAs(t, "plugin") }

func startAs(t *testing.T, role string) pluginv1.PluginClient {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return pluginv1.NewPluginClient(pluginstest.Start(t, cmd))
}

func TestDescribe(t *testing.T) {
	client := start(t)
	request := func(protocol uint32, config string) *pluginv1.DescribeRequest {
		return &pluginv1.DescribeRequest{Protocol: protocol, Name: "a", NodeName: "n", Config: []byte(config)}
	}
	d, err := client.Describe(t.Context(), request(proto.Version, ""))
	if err != nil || d.GetVersion() != "of a" {
		t.Fatalf("%v, %v", d, err)
	}
	for _, tc := range []struct {
		name    string
		request *pluginv1.DescribeRequest
		code    codes.Code
		says    string
	}{
		{"its own error", request(proto.Version, `{"fail":"no such label"}`), codes.InvalidArgument, "no such label"},
		{"a key that it does not know", request(proto.Version, `{"fial":"x"}`), codes.InvalidArgument, `unknown field "fial"`},
		{"two values", request(proto.Version, `{} {}`), codes.InvalidArgument, "more than one value"},
		{"another protocol", request(proto.Version+1, ""), codes.FailedPrecondition, "speaks protocol 1, the host asks for 2"},
	} {
		_, err := client.Describe(t.Context(), tc.request)
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if _, err := client.Metrics(t.Context(), &pluginv1.MetricsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("metrics of a plugin without any: %v", err)
	}
}

// TestEndsWithItsHost: the process ends when the other end of its input is closed, and not before.
func TestEndsWithItsHost(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=plugin", proto.Handshake.MagicCookieKey+"="+proto.Handshake.MagicCookieValue)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "1|1|unix|") {
		cmd.Process.Kill()
		t.Fatalf("the handshake is %q, %v", line, err)
	}
	go func() {
		lines.ReadString('\n') // end of file: nothing has the other end any more
		ended <- cmd.Wait()
	}()
	select {
	case err := <-ended:
		t.Fatalf("it ended by itself: %v", err)
	default:
	}
	stdin.Close()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v, want status 0", err)
		}
	case <-time.After(20 * time.Second):
		cmd.Process.Kill()
		t.Error("it is still there 20 s after its input was closed")
	}
}

// TestByHand: a user who starts a plugin by hand learns what it is.
func TestByHand(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=plugin")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "This binary is a plugin") {
		t.Errorf("%v: %s", err, out)
	}
}
