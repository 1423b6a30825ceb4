package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/runtime/cgroups"
)

// The file descriptors that a plugin has from its start, beside the usual three.
const (
	exeFD  = 3 // its executable
	tempFD = 4 // its temporary directory
)

// openFor is how long a pipe is still read after its process has ended, when somebody else holds the other end.
const openFor = time.Second

// command is what to start.
type command struct {
	exe   *executable
	argv0 string // path to execute: exe's, or one that leads to exeFD
	argv  []string
	env   []string
	temp  *os.File // temporary directory
	uid   *int64
	gid   *int64
	caps  []uintptr      // all capabilities that it may have
	group *cgroups.Group // nil: no limits
}

// process is one that was started. stdin is held by nobody else: the plugin reads its end when we are gone.
type process struct {
	pid            int
	stdin          *os.File
	stdout, stderr *os.File
	handle         *os.Process
	namespace      bool // it is the init of a pid namespace: all its descendants end with it
	group          *cgroups.Group
	killed         atomic.Bool   // by us
	done           chan struct{} // closed when it has ended
	state          *os.ProcessState
}

// run starts the process, from an OS thread that lives as long as it does: Pdeathsig, with which it ends when we are killed, is sent
// when the thread ends that started it, and Go ends threads as it likes. The rights that the plugin is not to have are taken
// from the thread.
func (c command) run() (*process, error) {
	type result struct {
		p   *process
		err error
	}
	started := make(chan result, 1)
	onOwnThread(func() {
		p, err := c.start()
		started <- result{p, err}
		if err == nil {
			p.wait()
		}
	})
	r := <-started
	return r.p, r.err
}

// start runs on the thread of the process.
func (c command) start() (_ *process, err error) {
	pipes, err := newPipes()
	if err != nil {
		return nil, err
	}
	defer func() {
		pipes.closeTheirs()
		if err != nil {
			pipes.closeOurs()
		}
	}()
	if err := giveUp(c.caps); err != nil {
		return nil, err
	}
	leave := func() error { return nil }
	if c.group != nil {
		if leave, err = c.group.Enter(); err != nil {
			return nil, fmt.Errorf("enter the cgroup: %w", err)
		}
	}
	p := &process{stdin: pipes.stdin.ours, stdout: pipes.stdout.ours, stderr: pipes.stderr.ours, group: c.group, done: make(chan struct{})}
	err = c.startBusy(p, pipes)
	if leaveErr := leave(); leaveErr != nil {
		err = errors.Join(fmt.Errorf("leave the cgroup: %w", leaveErr), err) // the thread would count as the plugin's
	}
	if err != nil && p.handle != nil {
		err = errors.Join(err, p.kill())
		p.wait()
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// startBusy waits while somebody writes to the executable: another thread may have forked while a copy of it was open.
func (c command) startBusy(p *process, pipes *pipes) error {
	for try := 0; ; try++ {
		err := c.startIn(p, pipes)
		if !errors.Is(err, unix.ETXTBSY) || try == 5 {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// startIn starts the process in a pid namespace of its own and in its group where the host lets us.
func (c command) startIn(p *process, pipes *pipes) error {
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   c.env,
		Files: []*os.File{pipes.stdin.theirs, pipes.stdout.theirs, pipes.stderr.theirs, c.exe.file, c.temp},
		Sys: &syscall.SysProcAttr{
			Setsid: true,
			// Go sets it after the user: setting the user clears it.
			Pdeathsig:  syscall.SIGKILL,
			Cloneflags: syscall.CLONE_NEWPID,
			Credential: credential(c.uid, c.gid),
		},
	}
	if c.uid != nil && *c.uid != 0 {
		attr.Sys.AmbientCaps = c.caps // root has what is in the bounding set
	}
	if c.group != nil {
		dir, err := c.group.Open()
		if err != nil {
			return err
		}
		if dir != nil {
			defer dir.Close()
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
		}
	}
	p.namespace = true
	handle, err := os.StartProcess(c.argv0, c.argv, attr)
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 { // without CAP_SYS_ADMIN there is no namespace
		p.namespace, attr.Sys.Cloneflags = false, 0
		handle, err = os.StartProcess(c.argv0, c.argv, attr)
	}
	late := attr.Sys.UseCgroupFD && (errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP))
	if late { // before Linux 5.7
		attr.Sys.UseCgroupFD = false
		handle, err = os.StartProcess(c.argv0, c.argv, attr)
	}
	if err != nil {
		return c.explain(err)
	}
	p.handle, p.pid = handle, handle.Pid
	if late {
		return c.group.Add(p.pid)
	}
	return nil
}

func credential(uid, gid *int64) *syscall.Credential {
	if uid == nil && gid == nil {
		return nil
	}
	c := &syscall.Credential{} // without further groups
	if uid != nil {
		c.Uid, c.Gid = uint32(*uid), uint32(*uid)
	}
	if gid != nil {
		c.Gid = uint32(*gid)
	}
	return c
}

// explain says what the error of an exec means.
func (c command) explain(err error) error {
	var e syscall.Errno
	errors.As(err, &e)
	switch {
	case e == unix.ENOEXEC:
		return fmt.Errorf("%s cannot run here: it is built for another architecture than %s", c.exe.path, runtime.GOARCH)
	case e == unix.ENOENT && c.exe.script:
		return fmt.Errorf("%s cannot run here: the interpreter in its first line does not exist", c.exe.path)
	case e == unix.ENOENT:
		return fmt.Errorf("%s cannot run here: its dynamic loader does not exist; link it statically (CGO_ENABLED=0)", c.exe.path)
	case e == unix.EACCES && c.uid != nil:
		return fmt.Errorf("%s may not be executed by user %d: chmod a+rx it", c.exe.path, *c.uid)
	case e == unix.EACCES:
		return fmt.Errorf("%s may not be executed: is its file system mounted noexec?", c.exe.path)
	}
	return fmt.Errorf("start %s: %w", c.exe.path, err)
}

// wait collects the process, on the thread that started it.
func (p *process) wait() {
	p.state, _ = p.handle.Wait() // nil with an error
	close(p.done)
}

// kill ends the process and all that it has started.
func (p *process) kill() error {
	if p.handle == nil {
		return nil
	}
	err := p.handle.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	} else {
		p.killed.Store(true)
	}
	if !p.namespace {
		unix.Kill(-p.pid, unix.SIGKILL) // its session; who leaves that is ended by the group
	}
	if p.group != nil {
		err = errors.Join(err, p.group.Kill())
	}
	return err
}

// endedByUs tells whether kill was what ended it; only after done.
func (p *process) endedByUs() bool {
	return p.killed.Load() && p.signal() == syscall.SIGKILL
}

// signal that ended it; 0 without one.
func (p *process) signal() syscall.Signal {
	if p.state == nil {
		return 0
	}
	if status, ok := p.state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return status.Signal()
	}
	return 0
}

// end is how the process ended, for the operator; only after done.
func (p *process) end() string {
	if p.state == nil {
		return "ended"
	}
	if sig := p.signal(); sig != 0 {
		return fmt.Sprintf("was ended by %s", unix.SignalName(sig))
	}
	return fmt.Sprintf("ended with status %d", p.state.ExitCode())
}

// killable makes the kernel take the plugin before us when memory is short: it inherits our own place, which may be never.
func (p *process) killable(score int) error {
	return os.WriteFile(filepath.Join("/proc", strconv.Itoa(p.pid), "oom_score_adj"), []byte(strconv.Itoa(score)), 0)
}

// pipes are the standard streams.
type pipes struct{ stdin, stdout, stderr pipe }

type pipe struct{ ours, theirs *os.File }

func newPipes() (_ *pipes, err error) {
	p := &pipes{}
	defer func() {
		if err != nil {
			p.closeTheirs()
			p.closeOurs()
		}
	}()
	if p.stdin.theirs, p.stdin.ours, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stdout.ours, p.stdout.theirs, err = os.Pipe(); err != nil {
		return nil, err
	}
	p.stderr.ours, p.stderr.theirs, err = os.Pipe()
	return p, err
}

func (p *pipes) closeTheirs() { closeFiles(p.stdin.theirs, p.stdout.theirs, p.stderr.theirs) }
func (p *pipes) closeOurs()   { closeFiles(p.stdin.ours, p.stdout.ours, p.stderr.ours) }

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
