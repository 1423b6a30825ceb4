package upgrade

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/integration/harness"
)

const (
	// installed is the service's program in the sandbox.
	installed = "/usr/local/bin/kubelith"
	// tools has the manager's socket and rc-service, which is this test binary.
	tools = "/run/tools"
)

// manager is a service manager in a sandbox that is controlled as OpenRC is: rc-service starts, stops and asks for a
// service of /etc/init.d, whose program it starts again when that ends. `make openrc-test` does the same with OpenRC
// itself.
type manager struct {
	s       *harness.Server
	service string // kubelith or kubelith-agent

	mu      sync.Mutex
	wanted  bool
	process *exec.Cmd
	ended   chan struct{} // closed when the supervisor has ended
}

// answer is what rc-service prints and returns.
type answer struct {
	Text string
	Code int
}

// rcService is the program rc-service: it passes its arguments to the manager.
func rcService(args []string) int {
	conn, err := net.Dial("unix", tools+"/manager.sock")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	defer conn.Close()
	var a answer
	if err = json.NewEncoder(conn).Encode(args); err == nil {
		err = json.NewDecoder(conn).Decode(&a)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	fmt.Print(a.Text)
	return a.Code
}

// install makes the harness' server a service with the program in a file.
func install(t *testing.T, s *harness.Server, program string) *manager {
	t.Helper()
	m := &manager{s: s, service: "kubelith"}
	if s.Agent != nil {
		m.service = "kubelith-agent"
	}
	s.Exec(t, "mkdir", "-p", "/var/lib/bin", "/usr/local/bin", tools, "/etc/init.d")
	s.Exec(t, "mount", "--bind", "/var/lib/bin", "/usr/local/bin") // on the sandbox's disk
	s.Exec(t, "cp", program, installed)
	s.Exec(t, "ln", "-s", os.Args[0], tools+"/rc-service")
	s.Exec(t, "ln", "-s", os.Args[0], "/usr/local/bin/rc-service") // for the node itself, which does not have our PATH
	script := fmt.Sprintf("command=%q\ncommand_args=%q\noutput_log=%q\n", installed, strings.Join(s.ServerArgs(), " "), m.log())
	if err := os.WriteFile(s.Path("/etc/init.d/"+m.service), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", s.Path(tools+"/manager.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			m.serve(conn)
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
		m.do("stop")
		if t.Failed() {
			text, _ := os.ReadFile(s.Path(m.log()))
			lines := strings.Split(string(text), "\n")
			t.Logf("the service's log:\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
	return m
}

func (m *manager) log() string { return "/var/log/" + m.service + ".log" }

func (m *manager) serve(conn net.Conn) {
	defer conn.Close()
	var args []string
	if json.NewDecoder(conn).Decode(&args) != nil {
		return
	}
	args = slices.DeleteFunc(args, func(a string) bool { return a == "--quiet" })
	a := answer{fmt.Sprintf("rc-service: %q\n", args), 1}
	if len(args) == 2 && args[0] == m.service {
		a = m.do(args[1])
	}
	_ = json.NewEncoder(conn).Encode(a)
}

// do is what rc-service does with a verb. A service that is started already cannot be, nor stopped twice.
func (m *manager) do(verb string) answer {
	m.mu.Lock()
	wanted, ended := m.wanted, m.ended
	switch {
	case verb == "start" && !wanted:
		m.wanted, m.ended = true, make(chan struct{})
		go m.supervise(m.ended)
	case verb == "stop" && wanted:
		m.wanted = false
		if m.process != nil {
			_ = m.process.Process.Signal(unix.SIGTERM)
		}
	case verb == "status" && wanted:
	default:
		m.mu.Unlock()
		return answer{"", 3}
	}
	m.mu.Unlock()
	if verb == "stop" {
		<-ended
	}
	return answer{}
}

// supervise starts the program again when it has ended, until the service is stopped.
func (m *manager) supervise(ended chan struct{}) {
	defer close(ended)
	for m.spawn() {
		time.Sleep(time.Second) // respawn_delay
	}
}

// spawn runs the program once, and reports whether the service is still wanted.
func (m *manager) spawn() bool {
	log, err := os.OpenFile(m.s.Path(m.log()), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return false
	}
	defer log.Close()
	cmd := m.s.Command(installed, m.s.ServerArgs()...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	m.mu.Lock()
	if m.wanted {
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(log, "manager:", err)
			m.wanted = false
		}
	}
	if !m.wanted {
		m.mu.Unlock()
		return false
	}
	m.process = cmd
	m.mu.Unlock()
	_ = cmd.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process = nil
	return m.wanted
}

// pid of the program; 0 while none runs.
func (m *manager) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return 0
	}
	return m.process.Process.Pid
}

// command returns `kubelith upgrade` of the installed program, for the caller to run.
func (m *manager) command(args ...string) *exec.Cmd {
	return m.s.Command("env", append([]string{"PATH=" + tools + ":/usr/local/bin:" + os.Getenv("PATH"), installed, "upgrade"}, args...)...)
}

// upgrade runs it, and returns its output and its last line.
func (m *manager) upgrade(t *testing.T, args ...string) (ok bool, said, last string) {
	t.Helper()
	out, err := m.command(args...).CombinedOutput()
	said = string(out)
	lines := strings.Split(strings.TrimSpace(said), "\n")
	t.Logf("kubelith upgrade %s:\n%s", strings.Join(args, " "), said)
	return err == nil, said, lines[len(lines)-1]
}

// version of the installed program: the value of a line of kubelith version.
func (m *manager) version(t *testing.T, line string) string {
	t.Helper()
	return versionOf(t, m.s, installed, line)
}

func versionOf(t *testing.T, s *harness.Server, program, line string) string {
	t.Helper()
	for text := range strings.Lines(s.Exec(t, program, "version")) {
		if fields := strings.Fields(text); len(fields) > 1 && fields[0] == line {
			return fields[1]
		}
	}
	t.Fatalf("%s has no version of %s", program, line)
	return ""
}

// path of a file that both sides see: the sandbox's /var/lib.
func (m *manager) path(name string) string { return filepath.Join("/var/lib", name) }
