package pods

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"kubelith.io/kubelith/integration/harness"
)

// TestExec through kubectl: output, exit code, standard input.
func TestExec(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Run(t, harness.Pod(ns, "shell", "/bin/probe", "sleep"))
	for _, tc := range []struct {
		name           string
		input          string
		args           []string
		stdout, stderr string
		code           int
	}{
		{"output", "", []string{"shell", "--", "echo", "hello"}, "hello\n", "", 0},
		{"both-streams", "", append([]string{"shell", "--"}, harness.Shell("echo out; echo err >&2")...), "out\n", "err\n", 0},
		{"exit-code", "", append([]string{"shell", "--"}, harness.Shell("exit 42")...), "", "exit code 42", 42},
		{"signal", "", append([]string{"shell", "--"}, harness.Shell("kill -9 $$")...), "", "exit code 137", 137},
		{"stdin", "through", []string{"-i", "shell", "--", "cat"}, "through", "", 0},
		{"no-program", "", []string{"shell", "--", "no-such-program"}, "", "no-such-program", 126},
		{"no-container", "", []string{"shell", "-c", "nobody", "--", "true"}, "", "nobody", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cmd := s.KubectlCommand(append([]string{"-n", ns, "exec"}, tc.args...)...)
			cmd.Stdin = strings.NewReader(tc.input)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			cmd.Run() // checked by its exit code
			code := cmd.ProcessState.ExitCode()
			// containerd gives no exit code for a program that cannot be started: any failure will do.
			if tc.code == 126 && code > 0 {
				code = 126
			}
			if code != tc.code || stdout.String() != tc.stdout || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
			}
		})
	}
}

// TestExecBulk sends 8 MiB on a round trip, and checks that all of it came back.
func TestExecBulk(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := s.Run(t, harness.Pod(ns, "cat", "/bin/probe", "sleep"))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
	var got bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(time.Minute))
	defer cancel()
	err := s.Executor(t, pod, &corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true}).
		StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: bytes.NewReader(sent), Stdout: &got})
	if err != nil || !bytes.Equal(sent, got.Bytes()) {
		t.Errorf("%d of %d bytes came back: %v", got.Len(), len(sent), err)
	}
}

// sizes gives one terminal size and then no more.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

// TestExecTerminal: with tty there is a terminal of the given size, one stream, and Ctrl-C is a signal. Over both
// protocols, the WebSocket of today and the SPDY of older clients.
func TestExecTerminal(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"websocket", "spdy"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			pod := s.Run(t, harness.Pod(ns, "term", "/bin/probe", "sleep"))
			opts := &corev1.PodExecOptions{
				Command: harness.Shell(`trap 'echo interrupted; exit 5' INT
					tty
					until [ "$(stty size)" = "33 77" ]; do sleep 0.1; done
					stty size; echo err >&2
					while true; do sleep 0.1; done`),
				Stdin: true, Stdout: true, TTY: true,
			}
			executor := s.Executor(t, pod, opts)
			if protocol == "spdy" {
				url := s.Client(t).CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("term").
					SubResource("exec").VersionedParams(opts, scheme.ParameterCodec).URL()
				var err error
				if executor, err = remotecommand.NewSPDYExecutor(s.RESTConfig(t), "POST", url); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(time.Minute))
			defer cancel()
			keys, keyboard := io.Pipe()
			screen, output := io.Pipe()
			queue := make(sizes, 1)
			queue <- remotecommand.TerminalSize{Width: 77, Height: 33}
			defer close(queue)
			ended := make(chan error, 1)
			go func() {
				err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: keys, Stdout: output, Tty: true, TerminalSizeQueue: queue})
				output.CloseWithError(io.EOF)
				ended <- err
			}()
			var seen strings.Builder
			buf := make([]byte, 1024)
			for sent := false; ; {
				n, err := screen.Read(buf)
				seen.Write(buf[:n])
				if err != nil {
					break
				}
				if !sent && strings.Contains(seen.String(), "err\r\n") {
					sent = true
					io.WriteString(keyboard, "\x03")
				}
			}
			err := <-ended
			var exit utilexec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != 5 {
				t.Errorf("ended with %v, not exit code 5", err)
			}
			for _, want := range []string{"/dev/pts/", "33 77\r\n", "err\r\n", "interrupted\r\n"} {
				if !strings.Contains(seen.String(), want) {
					t.Errorf("%q is not on the screen:\n%q", want, seen.String())
				}
			}
		})
	}
}

// TestExecEnds: when the client goes away, the stream's command loses its input and ends.
func TestExecEnds(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := s.Run(t, harness.Pod(ns, "left", "/bin/probe", "sleep"))
	cmd := s.KubectlCommand("-n", ns, "exec", "-i", "left", "--", "cat")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	running := func() bool {
		_, _, err := s.TryPodExec(t, pod, "", "pidof", "cat")
		return err == nil
	}
	harness.Eventually(t, 20*time.Second, "cat to run", func() error {
		if !running() {
			return errors.New("it does not")
		}
		return nil
	})
	cmd.Process.Kill()
	cmd.Wait()
	harness.Eventually(t, 20*time.Second, "cat to end after its client was killed", func() error {
		if running() {
			return errors.New("it runs")
		}
		return nil
	})
}

// TestAttach talks to the container's first process.
func TestAttach(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "listens", harness.Shell("while read line; do echo heard $line; [ $line = end ] && exit 0; done")...)
	pod.Spec.Containers[0].Stdin = true
	pod.Spec.Containers[0].StdinOnce = true
	pod = s.Run(t, pod)
	cmd := s.KubectlCommand("-n", ns, "attach", "-i", "listens")
	cmd.Stdin = strings.NewReader("one\nend\n")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "heard one\nheard end\n") {
		t.Errorf("attach: %v, %q", err, out)
	}
	s.WaitPod(t, pod, "to end after the line", harness.PodEnded)
	if log := s.PodLogs(t, pod, "main"); log != "heard one\nheard end\n" {
		t.Errorf("the log is %q", log)
	}
}
