package process

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/integration/harness"
)

// onTerminal starts a command with its standard output on a new terminal; read gives what it wrote there so far.
func onTerminal(t *testing.T, cmd *exec.Cmd) (read func() string) {
	t.Helper()
	screen, text := harness.Terminal(t)
	defer screen.Close()
	cmd.Stdout = screen
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return text
}

// refusedOnTerminal runs a command that must fail and returns what it wrote to stderr.
func refusedOnTerminal(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	stderr := &output{}
	cmd.Stderr = stderr
	onTerminal(t, cmd)
	timer := time.AfterFunc(harness.Patience(20*time.Second), func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() < 1 {
		t.Errorf("ended with %v", err)
	}
	return stderr.text()
}

// TestTerminal: a user sees the start's progress and where the log is. A second server and a user who is not root get
// one line, and do not touch the log of the running server.
func TestTerminal(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	const log = harness.RunDir + "/server.log"
	server := func() *exec.Cmd { return s.BinaryCommand("server", "--disable="+strings.Join(controlPlane, ",")) }

	harness.RequireProgram(t, "setpriv")
	user := s.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", s.BinaryPath(), "server")
	if got := refusedOnTerminal(t, user); !strings.Contains(got, "root") || strings.Count(got, "\n") != 1 {
		t.Errorf("not root: %q", got)
	}
	if exists(s, harness.RunDir) {
		t.Errorf("a refused start made %s", harness.RunDir)
	}

	first := server()
	errors := &output{}
	first.Stderr = errors
	screen := onTerminal(t, first)
	progress := regexp.MustCompile(`(?m)^apiserver +ready +\d+\.\d\ds\s*$`)
	harness.Eventually(t, 60*time.Second, "the progress of the start", func() error {
		if text := screen(); !progress.MatchString(text) || !strings.Contains(text, "kubeconfig: "+harness.AdminKubeconfig) || !strings.Contains(text, "logging to "+log) {
			return fmt.Errorf("the terminal shows %q, stderr %q", text, errors.text())
		}
		return nil
	})
	join := regexp.MustCompile(`(?m)^  kubelith agent --server https://` + regexp.QuoteMeta(s.NodeIP) + `:6443 --token-file token\s*$`)
	harness.Eventually(t, 30*time.Second, "the command that joins a machine", func() error {
		if text := screen(); !join.MatchString(text) || strings.Contains(text, "kl1_") { // no secret on a screen
			return fmt.Errorf("the terminal shows %q", text)
		}
		return nil
	})
	before, err := os.ReadFile(s.Path(log))
	if err != nil || !strings.Contains(string(before), "component=apiserver") {
		t.Errorf("the log: %v, %q", err, before)
	}
	if got := refusedOnTerminal(t, server()); !strings.Contains(got, fmt.Sprintf("in use by process %d", first.Process.Pid)) || strings.Count(got, "\n") != 1 {
		t.Errorf("a second server: %q", got)
	}
	after, err := os.ReadFile(s.Path(log))
	if err != nil || !strings.HasPrefix(string(after), string(before)) || exists(s, log+".1") {
		t.Errorf("the second server changed the log of the first: %v, %d bytes were %d", err, len(after), len(before))
	}

	if err := first.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil || errors.text() != "" {
		t.Errorf("the stop: %v, %s", err, errors.text())
	}
	harness.Eventually(t, 10*time.Second, "the terminal to show that etcd has stopped", func() error {
		if !regexp.MustCompile(`(?m)^etcd +stopped`).MatchString(screen()) {
			return fmt.Errorf("it shows %q", screen())
		}
		return nil
	})
	second := server()
	screen = onTerminal(t, second)
	harness.Eventually(t, 60*time.Second, "a second start", func() error {
		if text := screen(); !progress.MatchString(text) {
			return fmt.Errorf("the terminal shows %q", text)
		}
		return nil
	})
	if kept, _ := os.ReadFile(s.Path(log + ".1")); !strings.HasPrefix(string(kept), string(before)) {
		t.Error("the log of the run before is lost")
	}
	second.Process.Signal(unix.SIGTERM)
	second.Wait()
}
