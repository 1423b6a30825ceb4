// Package sandbox starts the process of a pod's sandbox, which does nothing but hold the pod's namespaces. runc would
// start itself three times for it, and compile a seccomp filter for a program that only waits. What is special about a
// sandbox, such as a user namespace or a SELinux label, is for runc: see ForRunc and
// docs/adr/039-sandboxes-without-runc.md.
package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
	"github.com/opencontainers/cgroups"
	cgroupmanager "github.com/opencontainers/cgroups/manager"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/procstat"
)

const (
	// pauseName is what ps shows, as of the pause image.
	pauseName = "/pause"
	// recordFile is in the bundle of a sandbox that this package started.
	recordFile = "sandbox.json"
	// pidFile is where the runc shim keeps the pid, for programs that read a bundle.
	pidFile = "init.pid"
	// setupTimeout is how long the sandbox's process may take to set itself up.
	setupTimeout = time.Minute
	// killGrace is how long the kernel may take to end killed processes.
	killGrace = 10 * time.Second
)

// Record is what a later process needs to end a sandbox whose shim has died.
type Record struct {
	PID       int             `json:"pid"`
	StartTime uint64          `json:"startTime"` // see procstat.Stat
	Cgroup    *cgroups.Cgroup `json:"cgroup"`
}

// Launch starts the process of a sandbox and returns when it has given up its rights. Before it gets any, its record is
// on disk. The caller reaps the process.
func (st *Starter) Launch(bundle string, s *specs.Spec, systemd bool) (_ *Record, _ cgroups.Manager, err error) {
	config, err := settings(s, filepath.Join(bundle, "rootfs"))
	if err != nil {
		return nil, nil, err
	}
	group, err := cgroupOf(s, systemd)
	if err != nil {
		return nil, nil, err
	}
	if err := os.Mkdir(filepath.Join(bundle, "rootfs"), 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, err
	}
	settingsRead, settingsWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer settingsWrite.Close()
	resultRead, resultWrite, err := os.Pipe()
	if err != nil {
		settingsRead.Close()
		return nil, nil, err
	}
	defer resultRead.Close()
	flags, network := namespaceFlags(s)
	cmd := &exec.Cmd{
		Path:        st.program,
		Args:        []string{pauseName},
		Env:         []string{},
		Dir:         "/",
		ExtraFiles:  []*os.File{settingsRead, resultWrite},
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: flags, Setsid: true},
	}
	err = st.start(cmd, network)
	settingsRead.Close()
	resultWrite.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("start the sandbox's process: %w", err)
	}
	r := &Record{PID: cmd.Process.Pid, Cgroup: group}
	_ = cmd.Process.Release() // reaped by the caller
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Kill(nil))
			for { // it has ended; in the shim, the reaper may have been faster
				if _, failed := unix.Wait4(r.PID, nil, unix.WNOHANG, nil); failed != unix.EINTR {
					break
				}
			}
		}
	}()
	stat, err := procstat.Read(r.PID)
	if err != nil {
		return nil, nil, err
	}
	r.StartTime = stat.Start
	if err := r.Write(bundle); err != nil {
		return nil, nil, err
	}
	m, err := cgroupmanager.New(group)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Kill(m), m.Destroy())
		}
	}()
	if err := m.Apply(r.PID); err != nil {
		return nil, nil, fmt.Errorf("put the sandbox's process into its cgroup: %w", err)
	}
	if err := m.Set(group.Resources); err != nil {
		return nil, nil, fmt.Errorf("set the cgroup of the sandbox: %w", err)
	}
	if adj := s.Process.OOMScoreAdj; adj != nil {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", r.PID), []byte(strconv.Itoa(*adj)), 0); err != nil {
			return nil, nil, err
		}
	}
	if _, err := settingsWrite.Write(config); err != nil {
		return nil, nil, fmt.Errorf("tell the sandbox's process its settings: %w", err)
	}
	settingsWrite.Close()
	if err := resultRead.SetReadDeadline(time.Now().Add(setupTimeout)); err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(io.LimitReader(resultRead, 4096))
	if err != nil {
		return nil, nil, fmt.Errorf("the sandbox's process does not report that it is set up: %w", err)
	}
	if len(text) > 0 {
		return nil, nil, fmt.Errorf("the sandbox's process could not %s", bytes.ToValidUTF8(text, nil))
	}
	return r, m, nil
}

// Starter starts commands in network namespaces, on a thread that it keeps. A thread that ended would take others'
// processes with it: go-runc has the kernel kill runc when the thread ends that started it, and any thread may have.
type Starter struct {
	program  string
	requests chan startRequest
}

type startRequest struct {
	cmd     *exec.Cmd
	network string
	result  chan error
}

// NewStarter returns a Starter of the program at path program, names.PauseProgram.
func NewStarter(program string) *Starter {
	s := &Starter{program, make(chan startRequest)}
	go s.run()
	return s
}

// run never ends, so that its thread does not.
func (s *Starter) run() {
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for r := range s.requests {
		if err != nil {
			r.result <- fmt.Errorf("the own network namespace: %w", err)
			continue
		}
		r.result <- startIn(r.cmd, r.network, own)
	}
}

// start starts a command in a network namespace, the path of which is "" for the own one or a new one of cmd's flags.
func (s *Starter) start(cmd *exec.Cmd, network string) error {
	if network == "" {
		return cmd.Start()
	}
	r := startRequest{cmd, network, make(chan error, 1)}
	s.requests <- r
	return <-r.result
}

// startIn starts a command in a network namespace, and returns to the own one.
func startIn(cmd *exec.Cmd, network string, own int) error {
	fd, err := unix.Open(network, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", network, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("join the network namespace %s: %w", network, err)
	}
	err = cmd.Start()
	// Staying there would keep the namespace after its pod; the next start leaves it in any case.
	_ = unix.Setns(own, unix.CLONE_NEWNET)
	return err
}

func (r *Record) Write(bundle string) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := atomicfile.New(filepath.Join(bundle, recordFile), 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		_ = f.Cancel()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, pidFile), []byte(strconv.Itoa(r.PID)), 0o600)
}

// ReadRecord returns nil for a bundle that is not of one of our sandboxes.
func ReadRecord(bundle string) (*Record, error) {
	content, err := os.ReadFile(filepath.Join(bundle, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r Record
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(bundle, recordFile), err)
	}
	if r.Cgroup == nil {
		return nil, fmt.Errorf("%s: no cgroup", filepath.Join(bundle, recordFile))
	}
	return &r, nil
}

// End kills what runs in the sandbox, and removes its cgroup.
func (r *Record) End() error {
	m, err := cgroupmanager.New(r.Cgroup)
	if err != nil {
		return err
	}
	return errors.Join(r.Kill(m), m.Destroy())
}

// Group returns the sandbox's cgroup.
func (r *Record) Group() (cgroups.Manager, error) { return cgroupmanager.New(r.Cgroup) }

// Kill ends the sandbox's process and all of its cgroup, nil for no cgroup, and waits for their end.
func (r *Record) Kill(m cgroups.Manager) error {
	deadline := time.Now().Add(killGrace)
	for {
		alive, err := r.Signal(m, unix.SIGKILL)
		if err != nil || alive == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of the sandbox do not end", alive)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Signal returns how many processes it signalled. A pid that belongs to another process by now is left alone.
func (r *Record) Signal(m cgroups.Manager, signal unix.Signal) (alive int, err error) {
	pids := map[int]bool{}
	if m != nil {
		members, err := m.GetAllPids()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		for _, pid := range members {
			pids[pid] = true
		}
	}
	if stat, err := procstat.Read(r.PID); err == nil && !stat.Ended() && stat.Start == r.StartTime {
		pids[r.PID] = true
	}
	for pid := range pids {
		switch killed := unix.Kill(pid, signal); {
		case killed == nil:
			alive++
		case !errors.Is(killed, unix.ESRCH):
			err = errors.Join(err, fmt.Errorf("signal process %d: %w", pid, killed))
		}
	}
	return alive, err
}
