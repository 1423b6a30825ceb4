package conformance

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"kubelith.io/kubelith/plugins"
	handshake "kubelith.io/kubelith/plugins/proto"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// memoryGoal is how much anonymous memory an idle plugin should use at most, in bytes. More is noted, but no failure.
const memoryGoal = 15 << 20

// endTimeout is how long a plugin may take to exit after its host has died.
const endTimeout = 3 * time.Second

// common returns the checks of all plugins.
func common() []Check {
	return []Check{
		{"describes itself the same after a restart", describesTheSame},
		{"ignores fields that it does not know", ignoresUnknownFields},
		{"answers a method that it does not know with UNIMPLEMENTED", refusesUnknownMethods},
		{"answers health checks, 32 at once", answersAtOnce},
		{"refuses to be started by hand", refusesHands},
		{"ends when its host has gone", endsWithItsHost},
		{"idle memory", idleMemory},
	}
}

func describesTheSame(ctx context.Context, t *Target) (string, error) {
	before := t.Description()
	if err := t.restart(ctx); err != nil {
		return "", err
	}
	if after := t.Description(); !proto.Equal(before, after) {
		return "", fmt.Errorf("before: %v, after: %v", before, after)
	}
	return "", nil
}

// ignoresUnknownFields sends a request like that of a newer host.
func ignoresUnknownFields(ctx context.Context, t *Target) (string, error) {
	request := &pluginv1.DescribeRequest{Protocol: handshake.Version, Name: "checked", NodeName: "check", DataDir: t.dir, Config: t.options.Config}
	unknown := protowire.AppendTag(nil, 1000, protowire.BytesType)
	request.ProtoReflect().SetUnknown(protowire.AppendString(unknown, "of a later version"))
	return "", t.plugin.Call(ctx, "Describe", func(ctx context.Context, i plugins.Instance) error {
		_, err := pluginv1.NewPluginClient(i.Conn).Describe(ctx, request)
		return err
	})
}

func refusesUnknownMethods(ctx context.Context, t *Target) (string, error) {
	return "", t.plugin.Call(ctx, "Unknown", func(ctx context.Context, i plugins.Instance) error {
		err := i.Conn.Invoke(ctx, "/kubelith.plugin.v1.Plugin/OfALaterVersion", &pluginv1.MetricsRequest{}, &pluginv1.MetricsResponse{})
		if code := status.Code(err); code != codes.Unimplemented {
			return fmt.Errorf("answered %v", code)
		}
		return nil
	})
}

func answersAtOnce(ctx context.Context, t *Target) (string, error) {
	return "", atOnce(32, func(int) error {
		return t.plugin.Call(ctx, "Check", func(ctx context.Context, i plugins.Instance) error {
			answer, err := grpc_health_v1.NewHealthClient(i.Conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "plugin"})
			if err == nil && answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
				err = fmt.Errorf("health of service plugin: %v", answer.Status)
			}
			return err
		})
	})
}

// atOnce runs n calls at the same time.
func atOnce(n int, call func(i int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = call(i) })
	}
	group.Wait()
	return cmp.Or(errs...)
}

// refusesHands starts the executable without the host's cookie: a user who does so should get an explanation, not wait.
func refusesHands(ctx context.Context, t *Target) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.options.File, t.options.Args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", errors.New("it keeps running without the magic cookie")
	case err == nil:
		return "", errors.New("it ends with status 0 without the magic cookie: use another status")
	case !errors.As(err, &exit):
		return "", err
	case len(strings.TrimSpace(string(out))) == 0:
		return "", errors.New("it ends without the magic cookie but does not say why: print the reason")
	}
	return "", nil
}

// endsWithItsHost starts it as a host that then dies would: the end of its standard input is the only signal.
func endsWithItsHost(ctx context.Context, t *Target) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.options.File, t.options.Args...)
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.dir, "PLUGIN_UNIX_SOCKET_DIR=" + t.dir,
		handshake.Handshake.MagicCookieKey + "=" + handshake.Handshake.MagicCookieValue,
		"PLUGIN_PROTOCOL_VERSIONS=" + strconv.Itoa(handshake.Version),
	}, t.options.Env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); err != nil || strings.Count(line, "|") < 4 {
		return "", errors.Join(fmt.Errorf("its first line is not a handshake: %q", line), cmd.Process.Kill(), cmd.Wait())
	}
	go io.Copy(io.Discard, lines)
	stdin.Close()
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
		return "", nil
	case <-time.After(endTimeout):
		_ = cmd.Process.Kill()
		<-ended
		return "", errors.New("it does not exit when its standard input ends: an orphan would remain")
	}
}

func idleMemory(ctx context.Context, t *Target) (string, error) {
	if err := t.restart(ctx); err != nil {
		return "", err
	}
	select { // until what the start has used is given back
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
	}
	bytes, err := anonymous(t.state().PID)
	if err != nil {
		return "", err
	}
	note := fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	if bytes > memoryGoal {
		note += fmt.Sprintf(", more than the %d MiB that a plugin should need", memoryGoal>>20)
	}
	return note, nil
}

// anonymous is a process's own memory in bytes: Pss_Anon of smaps_rollup (proc(5)).
func anonymous(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Pss_Anon:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no Pss_Anon of process %d", pid)
}
