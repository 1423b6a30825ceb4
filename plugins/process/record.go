package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/procstat"
	"kubelith.io/kubelith/runtime/cgroups"
)

// record is a file in the socket directory that names a process and its cgroup. After the server was killed, the next
// run finds there what to end.
type record struct {
	PID     int      `json:"pid"`   // 0: it was about to be started
	Start   string   `json:"start"` // of the process, in ticks since boot: pids are reused
	Cgroups []string `json:"cgroups"`

	file string
}

func newRecord(dir, name string) *record {
	return &record{file: filepath.Join(dir, name+".json")}
}

// started adds the process to the file. If that fails, its cgroup still identifies it.
func (r *record) started(pid int) {
	r.PID, r.Start = pid, startTime(pid)
	r.write()
}

func (r *record) write() error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(r.file, content, 0o600)
}

func (r *record) remove() error {
	err := os.Remove(r.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// startTime returns when a process started, in ticks since boot; empty if there is no such process.
func startTime(pid int) string {
	stat, err := procstat.Read(pid)
	if err != nil {
		return ""
	}
	return strconv.FormatUint(stat.Start, 10)
}

// Sweep ends the processes that an earlier run on this run directory left, removes their cgroups and sockets, and
// returns how many processes there were. No server may run on the directory.
func Sweep(runDir string) (int, error) {
	dir := filepath.Join(runDir, socketDirName)
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return 0, err
	}
	ended := 0
	var errs []error
	for _, file := range files {
		content, err := os.ReadFile(file)
		var r record
		if err == nil {
			err = json.Unmarshal(content, &r)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		n, err := r.sweep()
		ended += n
		errs = append(errs, err)
	}
	if err := detachBelow(dir); err != nil {
		return ended, errors.Join(append(errs, err)...)
	}
	return ended, errors.Join(append(errs, os.RemoveAll(dir))...)
}

func (r *record) sweep() (int, error) {
	ended := 0
	// The descriptor stays with the process that has the pid now, so its start time can be compared safely.
	if fd, err := unix.PidfdOpen(r.PID, 0); r.PID > 0 && err == nil {
		if r.Start != "" && startTime(r.PID) == r.Start && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			ended++
		}
		unix.Close(fd)
	}
	inside, err := cgroups.Kill(r.Cgroups)
	if inside > ended {
		ended = inside
	}
	err = errors.Join(err, cgroups.RemoveDirs(r.Cgroups))
	for _, dir := range r.Cgroups {
		if around := filepath.Dir(dir); strings.HasPrefix(filepath.Base(around), cgroupPrefix) {
			os.Remove(around) // the parent of all plugins, unless it has others
		}
	}
	return ended, err
}
