package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// sandbox is where a node runs: its own network, mounts and control groups on this machine, so that several nodes run
// at once and nothing of the machine changes. `kubelith sandbox` keeps it until its standard input ends, and then ends
// everything in it.
type sandbox struct {
	cmd   *exec.Cmd
	stdin io.Closer
	// what the command reports
	PID    int    // a process in the sandbox's namespaces
	Cgroup string // the root for the pods
	NodeIP string // reachable from this machine
	HostIP string // this machine, reachable from the sandbox
}

func newSandbox(binary string, dir *directory) (*sandbox, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("Options.Node needs root: run the tests with sudo, or without a node")
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		return nil, errors.New("Options.Node needs the program nsenter: install util-linux")
	}
	if err := visible(binary); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(dir.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s := &sandbox{cmd: exec.Command(binary, "sandbox")}
	s.cmd.Stderr, s.cmd.ExtraFiles = log, []*os.File{dir.lock}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the sandbox of the node: %s", lastLines(dir.log, 1)), s.close())
	}
	return s, nil
}

// visible refuses a program in a directory that the sandbox replaces by its own (host/sandbox).
func visible(program string) error {
	for _, hidden := range []string{"/run/", "/var/lib/", "/var/log/"} {
		if strings.HasPrefix(program, hidden) {
			return fmt.Errorf("the node cannot see %s, because it has its own %s: put kubelith elsewhere", program, strings.TrimSuffix(hidden, "/"))
		}
	}
	return nil
}

// address returns where the API is served.
func (s *sandbox) address() address { return address{s.NodeIP, "6443"} }

// serverArgs returns the flags of a node in the sandbox, where the default directories are its own.
func (s *sandbox) serverArgs() []string {
	return []string{
		"--kubelet-arg=cgroup-root=/" + s.Cgroup,
		// A nearly full disk of this machine is not under test: pods would be evicted, and their images deleted.
		"--kubelet-arg=eviction-hard=memory.available<100Mi", "--kubelet-arg=image-gc-high-threshold=100",
	}
}

// command returns a program to run in the sandbox; without a sandbox, one to run as it is.
func (s *sandbox) command(program string, args ...string) *exec.Cmd {
	if s == nil {
		return exec.Command(program, args...)
	}
	return exec.Command("nsenter", append([]string{"--target=" + strconv.Itoa(s.PID), "--mount", "--net", "--", program}, args...)...)
}

// removeTimeout is how long the removal of a sandbox may take.
const removeTimeout = 90 * time.Second

// close ends everything in the sandbox and removes it.
func (s *sandbox) close() error {
	if s == nil || s.stdin == nil {
		return nil
	}
	s.stdin.Close()
	s.stdin = nil
	timer := time.AfterFunc(removeTimeout, func() { s.cmd.Process.Kill() })
	defer timer.Stop()
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the node's sandbox was not removed: %w", err)
	}
	return nil
}
