package process

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

// The file descriptors that a plugin has from its start, in addition to the usual three.
const (
	exeFD  = 3 // its executable
	tempFD = 4 // its temporary directory
)

// drainOutputFor is how long a pipe is read after its process has ended, if another process holds the other end.
const drainOutputFor = time.Second

// command describes the process to start.
type command struct {
	exe    *Executable
	argv0  string // path to execute: that of exe, or a link to exeFD
	argv   []string
	env    []string
	temp   *os.File // temporary directory
	uid    *int64
	gid    *int64
	caps   []uintptr      // all capabilities that it may have
	cgroup *cgroups.Group // nil: no limits
}

// child is a started process. Only the server holds the other end of stdin: the plugin reads end of file when the
// server is gone.
type child struct {
	pid            int
	stdin          *os.File
	stdout, stderr *os.File
	handle         *os.Process
	namespace      bool // it is the init process of a pid namespace: all its descendants end with it
	cgroup         *cgroups.Group
	killed         atomic.Bool   // by kill
	done           chan struct{} // closed when it has ended
	state          *os.ProcessState
}

// run starts the process from an OS thread that lives as long as the process does. The kernel sends Pdeathsig, which
// ends the process when the server is killed, as soon as the thread that started it ends, and Go ends threads at any
// time. The thread also gives up the privileges that the plugin must not have.
func (c command) run() (*child, error) {
	type result struct {
		child *child
		err   error
	}
	started := make(chan result, 1)
	onOwnThread(func() {
		child, err := c.start()
		started <- result{child, err}
		if err == nil {
			child.wait()
		}
	})
	r := <-started
	return r.child, r.err
}

// start runs on the thread of the process.
func (c command) start() (_ *child, err error) {
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
	if err := dropPrivileges(c.caps); err != nil {
		return nil, err
	}
	leave := func() error { return nil }
	if c.cgroup != nil {
		if leave, err = c.cgroup.Enter(); err != nil {
			return nil, fmt.Errorf("enter the cgroup: %w", err)
		}
	}
	p := &child{stdin: pipes.stdin.ours, stdout: pipes.stdout.ours, stderr: pipes.stderr.ours, cgroup: c.cgroup, done: make(chan struct{})}
	err = c.startBusy(p, pipes)
	if leaveErr := leave(); leaveErr != nil {
		err = errors.Join(fmt.Errorf("leave the cgroup: %w", leaveErr), err) // the thread would count as one of the plugin's
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

// startBusy retries while the executable is open for writing: another thread may have forked while it wrote a copy.
func (c command) startBusy(p *child, pipes *pipes) error {
	for try := 0; ; try++ {
		err := c.startIn(p, pipes)
		if !errors.Is(err, unix.ETXTBSY) || try == 5 {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// startIn starts the process in its own pid namespace and cgroup, as far as the host allows it.
func (c command) startIn(p *child, pipes *pipes) error {
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   c.env,
		Files: []*os.File{pipes.stdin.theirs, pipes.stdout.theirs, pipes.stderr.theirs, c.exe.file, c.temp},
		Sys: &syscall.SysProcAttr{
			Setsid: true,
			// Go sets it after the user, as setting the user clears it.
			Pdeathsig:  syscall.SIGKILL,
			Cloneflags: syscall.CLONE_NEWPID,
			Credential: credential(c.uid, c.gid),
		},
	}
	if c.uid != nil && *c.uid != 0 {
		attr.Sys.AmbientCaps = c.caps // root has those of the bounding set
	}
	if c.cgroup != nil {
		dir, err := c.cgroup.Open()
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
		return c.cgroup.Add(p.pid)
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

// explain returns what the error of an exec means and how to fix it.
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
func (c *child) wait() {
	c.state, _ = c.handle.Wait() // nil with an error
	close(c.done)
}

// kill ends the process and everything it started.
func (c *child) kill() error {
	if c.handle == nil {
		return nil
	}
	err := c.handle.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	} else {
		c.killed.Store(true)
	}
	if !c.namespace {
		unix.Kill(-c.pid, unix.SIGKILL) // its session; the cgroup has those that left the session
	}
	if c.cgroup != nil {
		err = errors.Join(err, c.cgroup.Kill())
	}
	return err
}

// endedByKill reports whether kill ended the process. Valid after done.
func (c *child) endedByKill() bool {
	return c.killed.Load() && c.signal() == syscall.SIGKILL
}

// signal returns the signal that ended the process; 0: none.
func (c *child) signal() syscall.Signal {
	if c.state == nil {
		return 0
	}
	if status, ok := c.state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return status.Signal()
	}
	return 0
}

// exitStatus returns how the process ended, for the operator. Valid after done.
func (c *child) exitStatus() string {
	if c.state == nil {
		return "ended"
	}
	if sig := c.signal(); sig != 0 {
		return fmt.Sprintf("was ended by %s", unix.SignalName(sig))
	}
	return fmt.Sprintf("ended with status %d", c.state.ExitCode())
}

// setOOMScore makes the kernel kill the plugin before the server when memory is short. Without it the plugin has the
// server's score, which may exempt it.
func (c *child) setOOMScore(score int) error {
	return os.WriteFile(filepath.Join("/proc", strconv.Itoa(c.pid), "oom_score_adj"), []byte(strconv.Itoa(score)), 0)
}

// pipes are the standard streams. ours is the server's end, theirs the plugin's.
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
