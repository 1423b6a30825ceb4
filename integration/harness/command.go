package harness

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Result is the outcome of a program.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Exec runs a program in the sandbox and returns its standard output; it fails the test when the program fails.
func (s *Server) Exec(t testing.TB, program string, args ...string) string {
	t.Helper()
	res := run(t, s.Command(program, args...))
	if res.Code != 0 {
		t.Fatalf("%s %s: exit code %d\n%s%s", program, strings.Join(args, " "), res.Code, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// TryExec runs a program in the sandbox that may fail.
func (s *Server) TryExec(t testing.TB, program string, args ...string) Result {
	t.Helper()
	return run(t, s.Command(program, args...))
}

// RunBinary runs kubelith in the sandbox until it ends by itself.
func (s *Server) RunBinary(t testing.TB, args ...string) Result {
	t.Helper()
	return run(t, s.BinaryCommand(args...))
}

// BinaryPath is the executable under test; the sandbox sees it at the same place.
func (s *Server) BinaryPath() string { return s.binary }

// BinaryCommand returns a command for kubelith in the sandbox, for the caller to run.
func (s *Server) BinaryCommand(args ...string) *exec.Cmd { return s.Command(s.binary, args...) }

// KubectlCommand returns a command for the bundled kubectl, in the server's sandbox and with the admin kubeconfig, for
// the caller to run.
func (a API) KubectlCommand(args ...string) *exec.Cmd { return a.kubectl(args...) }

// Kubectl runs the bundled kubectl and returns its standard output; it fails the test when kubectl fails.
func (a API) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return a.KubectlInput(t, "", args...)
}

// KubectlInput is Kubectl with standard input, such as a manifest for apply -f -.
func (a API) KubectlInput(t testing.TB, input string, args ...string) string {
	t.Helper()
	cmd := a.KubectlCommand(args...)
	cmd.Stdin = strings.NewReader(input)
	res := run(t, cmd)
	if res.Code != 0 {
		t.Fatalf("kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), res.Code, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// TryKubectl runs the bundled kubectl, which may fail.
func (a API) TryKubectl(t testing.TB, args ...string) Result {
	t.Helper()
	return run(t, a.KubectlCommand(args...))
}

// programTimeout ends a program that hangs.
const programTimeout = 2 * time.Minute

func run(t testing.TB, cmd *exec.Cmd) Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	timer := time.AfterFunc(Patience(programTimeout), func() { cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		t.Fatalf("%s: still running after %s\n%s%s", cmd, Patience(programTimeout), stdout.String(), stderr.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", cmd, err)
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}
