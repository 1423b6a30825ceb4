package upgrade

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// installed returns a service file as install.sh writes it: the copy at the script's end.
func installed(t *testing.T, name string) string {
	t.Helper()
	script, err := os.ReadFile("../../scripts/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(script), "#BEGIN "+name+"\n")
	text, _, ends := strings.Cut(rest, "#END "+name+"\n")
	if !found || !ends {
		t.Fatalf("install.sh has no %s", name)
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimPrefix(line, "#|"))
	}
	return b.String()
}

// TestUnits: systemd ends no start for being slow, starts a program that has ended again without limit, and leaves the
// pods alone.
func TestUnits(t *testing.T) {
	for _, name := range []string{"kubelith.service", "kubelith-agent.service"} {
		set, section := map[string]string{}, ""
		for line := range strings.Lines(installed(t, name)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "[") {
				section = line
			} else if key, value, found := strings.Cut(line, "="); found && !strings.HasPrefix(line, "#") {
				set[section+key] = value // of several, systemd takes the last
			}
		}
		for key, want := range map[string]string{
			"[Service]TimeoutStartSec":    "infinity",
			"[Unit]StartLimitIntervalSec": "0",
			"[Service]Restart":            "always",
			"[Service]KillMode":           "process",
			"[Service]OOMPolicy":          "continue",
			"[Service]LimitNOFILE":        "1048576",
			"[Service]LimitNPROC":         "infinity",
			"[Service]TasksMax":           "infinity",
		} {
			if got := set[key]; got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
	}
}

// TestOpenRCLimits runs start_pre of the OpenRC services, whose limits the program inherits: no core files, whose
// memory has keys, and as many open files as the machine allows, up to a million. This holds in the shells of the
// machines that have OpenRC, too.
func TestOpenRCLimits(t *testing.T) {
	const script = `
modprobe() { :; }
checkpath() { :; }
. "$1"
ulimit -S -c unlimited 2>/dev/null
ulimit -S -n 64
start_pre
ulimit -S -n
ulimit -H -n
ulimit -S -c
ulimit -H -c
`
	for _, shell := range [][]string{{"sh"}, {"dash"}, {"bash", "--posix"}, {"busybox", "sh"}} {
		if _, err := exec.LookPath(shell[0]); err != nil {
			continue
		}
		for _, name := range []string{"kubelith.openrc", "kubelith-agent.openrc"} {
			file := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(file, []byte(installed(t, name)), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-c", script, "sh", file)...).CombinedOutput()
			got := strings.Fields(string(out))
			if err != nil || len(got) != 4 {
				t.Errorf("%s in %s: %v: %s", name, shell, err, out)
				continue
			}
			if got[0] != got[1] || got[0] == "64" {
				t.Errorf("%s in %s: %s open files, of %s at most", name, shell, got[0], got[1])
			}
			if got[2] != "0" || got[3] != "0" {
				t.Errorf("%s in %s: core files of %s blocks, of %s at most", name, shell, got[2], got[3])
			}
		}
	}
}
