// Package procstat reads what the kernel reports about a process in one line.
package procstat

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ticksPerSecond is USER_HZ, the same on all architectures that Go runs on.
const ticksPerSecond = 100

// Stat is a process as /proc/PID/stat has it.
type Stat struct {
	Name   string // of the command, cut to 15 bytes by the kernel
	State  byte   // such as R, S or Z
	Parent int
	// CPU is the time that the process and the children it has waited for ran, in seconds.
	CPU float64
	// Start is when the process started, in clock ticks since boot. A later process with the same pid has another.
	Start uint64
}

// Ended reports whether the process has ended and only waits for its parent.
func (s *Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Read returns the Stat of a process. The error is a fs.ErrNotExist if there is none.
func Read(pid int) (*Stat, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	return Parse(string(content))
}

// Parse reads the content of a file /proc/PID/stat.
//
// Source: proc_pid_stat(5).
func Parse(content string) (*Stat, error) {
	// The name is in parentheses, and may hold blanks and parentheses.
	open, end := strings.IndexByte(content, '('), strings.LastIndexByte(content, ')')
	if open < 0 || end < open {
		return nil, fmt.Errorf("not the stat of a process: %q", content)
	}
	fields := strings.Fields(content[end+1:]) // the third one is the first here
	if len(fields) < 20 {
		return nil, fmt.Errorf("not the stat of a process: %q", content)
	}
	s := &Stat{Name: content[open+1 : end], State: fields[0][0]}
	var err error
	if s.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return nil, fmt.Errorf("the parent of a process: %w", err)
	}
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the CPU time of a process: %w", err)
		}
		s.CPU += float64(ticks) / ticksPerSecond
	}
	if s.Start, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return nil, fmt.Errorf("the start of a process: %w", err)
	}
	return s, nil
}
