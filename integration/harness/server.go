package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/host/sandbox"
)

const (
	// DataDir, RunDir and AdminKubeconfig are the product's default paths, inside the sandbox (see Server.Path).
	DataDir         = "/var/lib/kubelith"
	RunDir          = "/run/kubelith"
	AdminKubeconfig = "/etc/kubelith/kubelith.yaml"

	// TestImageArchive is where the test image waits for its import, inside the sandbox.
	TestImageArchive = DataDir + "/agent/images/kubelith-test.tar"

	readyTimeout = 120 * time.Second
	stopTimeout  = 30 * time.Second
)

// Server is a kubelith server, or an agent, in its sandbox. It may be running or not.
type Server struct {
	API
	*sandbox.Sandbox
	// Agent configures how an agent joins; nil for a server. Launch reads it, so tests may change it before.
	Agent *AgentOptions

	opts    Options
	binary  string
	logPath string

	mu       sync.Mutex
	process  *exec.Cmd
	exited   chan struct{} // closed when process has ended
	expected bool          // the test asked for the end
}

// New creates a sandbox and what the server will need, and starts nothing.
func New(t testing.TB, opts Options) *Server {
	t.Helper()
	Require(t)
	s, err := newServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last lines of the server's log:\n%s", lastLines(s.Logs(), 100))
		}
		if err := s.finish(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Start creates a sandbox, starts a server in it and, unless NoWait, waits until the node is Ready.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	s := New(t, opts)
	s.Launch(t)
	if !opts.NoWait {
		s.WaitReady(t)
	}
	return s
}

// startServer is Start for a server that outlives the test.
func startServer(opts Options) (*Server, error) {
	s, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	err = s.launch()
	if err == nil && !opts.NoWait {
		err = s.ready(readyTimeout)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w; last lines of its log:\n%s", err, lastLines(s.Logs(), 100)), s.finish())
	}
	return s, nil
}

func newServer(opts Options) (*Server, error) {
	bin, err := binary()
	if err != nil {
		return nil, err
	}
	sb, err := sandbox.New(sandbox.Options{IPv6: opts.IPv6, Network: opts.Network})
	if err != nil {
		return nil, err
	}
	s := &Server{Sandbox: sb, Agent: opts.Agent, opts: opts, binary: bin, logPath: filepath.Join(sb.Base, "server.log")}
	s.API = API{s.restConfig, func(args ...string) *exec.Cmd { return s.api().BinaryCommand(append([]string{"kubectl"}, args...)...) }, s.Logs}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, sb.Close())
	}
	return s, nil
}

// CgroupRoot is the kubelet's --cgroup-root of this server.
func (s *Server) CgroupRoot() string { return "/" + s.Name() }

// ServerArgs returns the arguments that Launch passes to kubelith, including the word server or agent.
func (s *Server) ServerArgs() []string {
	args := []string{"server"}
	if s.Agent != nil {
		args = s.Agent.args()
	}
	args = append(args, "--kubelet-arg=cgroup-root="+s.CgroupRoot())
	// A nearly full host disk is not under test: without these flags pods would be evicted, and their images deleted.
	args = append(args, "--kubelet-arg=eviction-hard=memory.available<100Mi", "--kubelet-arg=image-gc-high-threshold=100")
	if name := s.NodeName(); name != "" {
		args = append(args, "--node-name="+name)
	}
	if s.opts.ConfigYAML != "" {
		args = append(args, "--config=/etc/kubelith/config.yaml")
	}
	if len(s.opts.Disable) > 0 {
		args = append(args, "--disable="+strings.Join(s.opts.Disable, ","))
	}
	return append(args, s.opts.Args...)
}

// UseProgram replaces the executable under test by another one, which the sandbox sees at that path.
func (s *Server) UseProgram(path string) { s.binary = path }

// Launch starts the server and returns at once.
func (s *Server) Launch(t testing.TB) {
	t.Helper()
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running() {
		return fmt.Errorf("the server already runs as pid %d", s.process.Process.Pid)
	}
	log, err := os.OpenFile(s.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.Command(s.binary, s.ServerArgs()...)
	cmd.Env = append(os.Environ(), s.opts.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	// Its own group: a Ctrl-C on the terminal is for the tests.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.binary, err)
	}
	s.process, s.exited, s.expected = cmd, make(chan struct{}), false
	go func(exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(s.exited)
	return nil
}

// running requires mu to be held.
func (s *Server) running() bool {
	if s.process == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// PID returns the server's process id (nsenter has become the server by exec).
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.Process.Pid
}

// Exited is closed when the running server has ended. Launch renews it.
func (s *Server) Exited() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exited
}

// WaitExit waits for a server that ends by itself and returns its exit code (-1 when a signal ended it).
func (s *Server) WaitExit(t testing.TB, timeout time.Duration) int {
	t.Helper()
	s.expectExit()
	select {
	case <-s.Exited():
	case <-time.After(Patience(timeout)):
		t.Fatalf("the server still runs after %s", Patience(timeout))
	}
	return s.process.ProcessState.ExitCode()
}

func (s *Server) expectExit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected = true
}

// Stop sends SIGTERM and returns how long the server took to end, with exit code 0 and within 30 s.
func (s *Server) Stop(t testing.TB) time.Duration {
	t.Helper()
	s.expectExit()
	began := time.Now()
	if err := s.process.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatalf("stop: %v", err)
	}
	select {
	case <-s.Exited():
	case <-time.After(Patience(stopTimeout)):
		t.Fatalf("the server still runs %s after SIGTERM", Patience(stopTimeout))
	}
	if code := s.process.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the server stopped with exit code %d; last lines of its log:\n%s", code, lastLines(s.Logs(), 20)) // a next launch adds to it
	}
	return time.Since(began)
}

// Kill9 kills only the server's process, and waits until it has ended.
func (s *Server) Kill9(t testing.TB) {
	t.Helper()
	s.expectExit()
	if err := s.process.Process.Kill(); err != nil {
		t.Fatalf("kill -9: %v", err)
	}
	<-s.Exited()
}

// Restart stops the server, starts it again and waits until it is Ready.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	s.Launch(t)
	s.WaitReady(t)
}

// Logs returns everything that the server has written to stdout and stderr so far, over all its launches.
func (s *Server) Logs() string {
	content, _ := os.ReadFile(s.logPath)
	return string(content)
}

// diedUnasked reports a server that ended though no test asked for it.
func (s *Server) diedUnasked() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || s.running() || s.expected {
		return nil
	}
	return fmt.Errorf("the server ended unasked (%s); last lines of its log:\n%s", s.process.ProcessState, lastLines(s.Logs(), 100))
}

// finish removes the sandbox and reports the server's defects.
func (s *Server) finish() error {
	errs := []error{s.diedUnasked()}
	for _, line := range defects(s.Logs()) {
		if s.opts.Panics && (strings.Contains(line, "Observed a panic") || line == "panic: a test") {
			continue
		}
		errs = append(errs, fmt.Errorf("the server's log has: %s", line))
	}
	if dir := os.Getenv("KUBELITH_TEST_LOGS"); dir != "" {
		name := fmt.Sprintf("%s-%d-%s.log", filepath.Base(os.Args[0]), os.Getpid(), s.Name())
		os.MkdirAll(dir, 0o755)
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(s.Logs()), 0o644))
	}
	s.expectExit()
	s.mu.Lock()
	if s.running() { // it may still be nsenter, which the holder cannot know
		s.process.Process.Kill()
		<-s.exited
	}
	s.mu.Unlock()
	return errors.Join(append(errs, s.Close())...)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
