package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// stopTimeout is how long a server may take to end; its own limit is 25 seconds.
const stopTimeout = 30 * time.Second

// process is a server that has been started. It ends with its standard input: the kernel closes that when the test
// binary ends, however that happens.
type process struct {
	cmd     *exec.Cmd
	log     string
	stdin   io.Closer
	exited  chan struct{} // closed when it has ended
	stopped bool          // as requested
}

// startProcess starts a command whose output is appended to a log. The process keeps lock open, and so locked.
func startProcess(cmd *exec.Cmd, logFile string, lock *os.File) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{lock}
	// Its own group: ctrl-c on the terminal is for the tests.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &process{cmd: cmd, log: logFile, exited: make(chan struct{})}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	go func() {
		cmd.Wait() // its state is in cmd.ProcessState
		close(p.exited)
	}()
	return p, nil
}

// running reports whether it has not ended; nil is a process that was never started.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// stop ends a process that runs, in order, and waits for its end.
func (p *process) stop() error {
	if !p.running() {
		return nil
	}
	p.stopped = true
	p.stdin.Close()
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("the server did not stop within %s and was killed", stopTimeout)
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("the server stopped with an error (%s)", p.cmd.ProcessState)
	}
	return nil
}

// end is stop for the last time: it reports a process that ended before it was asked to.
func (p *process) end() error {
	if p == nil || p.stopped {
		return nil
	}
	if !p.running() {
		p.stopped = true
		return fmt.Errorf("the server ended unexpectedly (%s)", p.cmd.ProcessState)
	}
	return p.stop()
}

// lastLines returns the end of a file.
func lastLines(path string, n int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
