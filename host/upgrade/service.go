package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"kubelith.io/kubelith/host"
)

// Service is the service that runs a node, as its service manager knows it.
type Service interface {
	// Name of the service, for users.
	Name() string
	// Command is the program, an absolute path, and its arguments.
	Command() []string
	// Stop returns when the process has ended.
	Stop(context.Context) error
	// Start returns at once. It does nothing when the service runs.
	Start(context.Context) error
	// Up reports whether the service manager takes the service for started, and how often the program has ended since
	// Start.
	Up(context.Context) (up bool, ended int, err error)
	// Output is the last of what the program has written since a time.
	Output(ctx context.Context, since time.Time) string
}

// FindService returns the service of this machine.
func FindService(ctx context.Context) (Service, error) {
	names := []string{"kubelith", "kubelith-agent"} // as scripts/install.sh creates them
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		for _, name := range names {
			s := &systemd{unit: name + ".service"}
			text, err := host.Run(ctx, "", "systemctl", "show", "--property=ExecStart", "--value", s.unit)
			if err != nil {
				return nil, fmt.Errorf("systemctl show %s: %w", s.unit, err)
			}
			if s.command = execStart(text); len(s.command) > 0 {
				return s, nil
			}
		}
	} else {
		for _, name := range names {
			s := &openRC{name: name}
			text, err := os.ReadFile(filepath.Join("/etc/init.d", name))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if s.command, s.log = initScript(string(text)); len(s.command) > 0 {
				s.from = size(s.log)
				return s, nil
			}
		}
	}
	return nil, errors.New("there is no service kubelith or kubelith-agent on this machine: scripts/install.sh installs one; " +
		"without a service, stop the program, replace its file and start it")
}

// systemd is a unit.
type systemd struct {
	unit    string
	command []string
}

var _ Service = (*systemd)(nil)

// execStart reads the property ExecStart, as systemctl shows it: { path=/p ; argv[]=/p server ; ignore_errors=no ; ...
// }.
// Source: systemd/src/shared/bus-print-properties.c.
func execStart(text string) []string {
	_, rest, found := strings.Cut(text, "argv[]=")
	if !found {
		return nil
	}
	command, _, _ := strings.Cut(rest, " ; ")
	return absoluteCommand(strings.Fields(command))
}

func absoluteCommand(command []string) []string {
	if len(command) < 2 || !filepath.IsAbs(command[0]) {
		return nil
	}
	return command
}

// Name implements Service.
func (s *systemd) Name() string { return s.unit }

// Command implements Service.
func (s *systemd) Command() []string { return s.command }

// Stop implements Service.
func (s *systemd) Stop(ctx context.Context) error { return s.do(ctx, "stop") }

// Start implements Service. The count of restarts starts at 0 again.
func (s *systemd) Start(ctx context.Context) error {
	_, _ = host.Run(ctx, "", "systemctl", "reset-failed", s.unit) // there may be nothing to reset
	return s.do(ctx, "start", "--no-block")
}

func (s *systemd) do(ctx context.Context, args ...string) error {
	if _, err := host.Run(ctx, "", "systemctl", append(args, s.unit)...); err != nil {
		return fmt.Errorf("systemctl %s %s: %w", args[0], s.unit, err)
	}
	return nil
}

// Up implements Service. The unit is active once the program has reported that it is ready.
func (s *systemd) Up(ctx context.Context) (bool, int, error) {
	text, err := host.Run(ctx, "", "systemctl", "show", "--property=ActiveState", "--property=NRestarts", s.unit)
	if err != nil {
		return false, 0, fmt.Errorf("systemctl show %s: %w", s.unit, err)
	}
	up, ended := false, 0
	for line := range strings.Lines(text) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), "="); key {
		case "ActiveState":
			up = value == "active"
		case "NRestarts":
			ended, _ = strconv.Atoi(value) // old versions of systemd do not count
		}
	}
	return up, ended, nil
}

// Output implements Service.
func (s *systemd) Output(ctx context.Context, since time.Time) string {
	text, _ := host.Run(ctx, "", "journalctl", "--unit="+s.unit, "--output=cat", "--no-pager", "--lines=500", fmt.Sprintf("--since=@%d", since.Unix()))
	return text
}

// openRC is a service of OpenRC, which supervise-daemon runs.
type openRC struct {
	name, log string
	command   []string
	from      int64 // where the log begins of what this command has started, or found
}

var _ Service = (*openRC)(nil)

// initScript reads the variables of our service script, scripts/kubelith.openrc.
func initScript(text string) (command []string, log string) {
	value := map[string]string{}
	for line := range strings.Lines(text) {
		if key, quoted, found := strings.Cut(strings.TrimSpace(line), "="); found {
			value[key] = strings.Trim(quoted, `"'`)
		}
	}
	return absoluteCommand(append([]string{value["command"]}, strings.Fields(value["command_args"])...)), value["output_log"]
}

// Name implements Service.
func (s *openRC) Name() string { return s.name }

// Command implements Service.
func (s *openRC) Command() []string { return s.command }

// Stop implements Service.
func (s *openRC) Stop(ctx context.Context) error {
	if s.status(ctx) != nil {
		return nil // rc-service fails when there is nothing to stop
	}
	return s.do(ctx, "stop")
}

// Start implements Service.
func (s *openRC) Start(ctx context.Context) error {
	if s.status(ctx) == nil {
		return nil
	}
	s.from = size(s.log)
	return s.do(ctx, "start")
}

// size of a file, 0 if there is none.
func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

func (s *openRC) do(ctx context.Context, verb string) error {
	// Not host.Run: the supervisor would keep its pipe, and the wait for the end of the output would not end.
	cmd := exec.CommandContext(ctx, "rc-service", "--quiet", s.name, verb)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("rc-service %s %s: %w: see %s", s.name, verb, err, s.log)
	}
	return nil
}

func (s *openRC) status(ctx context.Context) error {
	return exec.CommandContext(ctx, "rc-service", "--quiet", s.name, "status").Run()
}

// Up implements Service. OpenRC does not know when the program is ready. A program that ends with an error writes one
// line that begins with its name.
func (s *openRC) Up(ctx context.Context) (bool, int, error) {
	ended := 0
	for line := range strings.Lines(s.Output(ctx, time.Time{})) {
		if strings.HasPrefix(line, ownLine) {
			ended++
		}
	}
	return s.status(ctx) == nil, ended, nil
}

// Output implements Service.
func (s *openRC) Output(context.Context, time.Time) string {
	const most = 256 << 10
	f, err := os.Open(s.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := s.from
	if from > info.Size() { // it was rotated
		from = 0
	}
	from = max(from, info.Size()-most)
	text := make([]byte, info.Size()-from)
	n, _ := f.ReadAt(text, from)
	return string(text[:n])
}

// ownLine begins the last line of a program that ends with an error.
const ownLine = "kubelith: "

// lastError returns why a program has ended or, if it has not, its last error; empty if there is none.
func lastError(output string) string {
	logged, said := "", ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if rest, found := strings.CutPrefix(line, ownLine); found {
			said = rest
		} else if strings.Contains(line, " error ") || strings.Contains(line, `"level":"error"`) {
			logged = line
		}
	}
	if said != "" {
		return said
	}
	return logged
}
