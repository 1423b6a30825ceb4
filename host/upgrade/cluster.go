package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/host"
)

// Unit is the transient unit of systemd in which a node upgrades itself. Without systemd it is the name of the log in
// the directory of upgrades.
const Unit = "kubelith-upgrade"

// Result is how an upgrade has ended that a node has started by itself.
type Result struct {
	ID    string `json:"id"`
	Error string `json:"error,omitempty"`
}

func resultFile(dir string) string { return filepath.Join(dir, "result.json") }

// ReadResult returns the last result in the directory of upgrades; the zero value if there is none.
func ReadResult(dir string) (r Result, err error) {
	text, err := os.ReadFile(resultFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// WriteResult stores the last result, durably.
func WriteResult(dir string, r Result) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(resultFile(dir), append(text, '\n'))
}

// Reporting runs an upgrade and stores its result. Until then UnderWay is true.
func Reporting(dir, id string, run func() error) error {
	release, err := hold(lockFile(dir))
	if err != nil {
		return err
	}
	defer release()
	r, failed := Result{ID: id}, run()
	if failed != nil {
		r.Error = oneline.Of(failed.Error())
	}
	return errors.Join(failed, WriteResult(dir, r))
}

// HoldCluster makes this process the only one on this machine that upgrades the cluster, until release or its end.
func HoldCluster(dataDir string) (release func(), err error) {
	return hold(filepath.Join(dataDir, datadir.UpgradeLock)) // the directory of upgrades goes with a request
}

// hold locks a file, unless another process holds it. The kernel frees it however the process ends.
func hold(file string) (release func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f, filepath.Dir(file)); err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// lock locks an open file for an upgrade in dir, or closes it.
func lock(f *os.File, dir string) error {
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errors.Join(fmt.Errorf("another upgrade is under way in %s: wait until it has ended", dir), f.Close())
	case err != nil:
		return errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return nil
}

func lockFile(dir string) string { return filepath.Join(dir, "lock") }

// UnderWay reports whether a process that Launch has started upgrades the node.
func UnderWay(dir string) bool {
	f, err := os.OpenFile(lockFile(dir), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close() // with it goes the lock
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// Interrupted reports whether an upgrade of a data directory has begun and not ended.
func Interrupted(dataDir string) bool {
	_, err := os.Stat(stateFile(dataDir))
	return err == nil
}

// Put verifies a program and copies it to a file in a directory, for root only. It returns its path, which ends in its
// SHA-256, and that.
func Put(file, dir string, proof Proof) (path, checksum string, err error) {
	if err := recognize(file); err != nil {
		return "", "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	part := filepath.Join(dir, "new.part")
	if checksum, err = proof.stage(file, part); err != nil {
		return "", "", err
	}
	path = filepath.Join(dir, checksum)
	return path, checksum, os.Rename(part, path)
}

// HasSum reports whether a file has a SHA-256.
func HasSum(file, want string) bool {
	got, err := sum(file)
	return err == nil && got == want
}

// OwnService returns the service that runs this process.
func OwnService(ctx context.Context) (Service, error) {
	s, err := FindService(ctx)
	if err != nil {
		return nil, err
	}
	other := fmt.Errorf("the node was not started by this machine's service %s: start that service", s.Name())
	if !sameFiles("/proc/self/exe", s.Command()[0]) {
		return nil, other
	}
	switch s := s.(type) {
	case *systemd:
		pid, err := host.Run(ctx, "", "systemctl", "show", "--property=MainPID", "--value", s.unit)
		if err != nil {
			return nil, fmt.Errorf("systemctl show %s: %w", s.unit, err)
		}
		if strings.TrimSpace(pid) != strconv.Itoa(os.Getpid()) {
			return nil, other
		}
	case *openRC:
		if s.status(ctx) != nil {
			return nil, other
		}
	}
	return s, nil
}

// Launch starts the service's program with other arguments, in a process that the stop of the service leaves alone. Its
// messages are in the journal of Unit or, without systemd, in a file in dir.
func Launch(ctx context.Context, dir string, s Service, args ...string) error {
	program := s.Command()[0]
	if _, ok := s.(*systemd); ok {
		_, _ = host.Run(ctx, "", "systemctl", "reset-failed", Unit+".service") // of an earlier upgrade
		_, err := host.Run(ctx, "", "systemd-run", append([]string{"--quiet", "--collect", "--unit=" + Unit, program}, args...)...)
		if err != nil {
			return fmt.Errorf("systemd-run: %w", err)
		}
		return nil
	}
	log, err := os.OpenFile(filepath.Join(dir, Unit+".log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, args...) // which outlives this process
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // it ends with this process at the latest, and its result is in a file
	return nil
}
