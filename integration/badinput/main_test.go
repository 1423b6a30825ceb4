// Package badinput gives the server what it must refuse: wrong settings, a host that cannot run it, and
// data that is damaged. Each must end in one clear line on stderr and a non-zero exit code, quickly, with
// nothing half-started and nothing lost.
package badinput

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// refusalTimeout is how long a server may take to refuse; most need a fraction of a second.
const refusalTimeout = 60 * time.Second

// controlPlane switches off what needs containers.
const controlPlane = "--disable=kubelet,containerd,proxy,dns"

// refusal runs a command that must fail and returns its one line for the user, without the program's name.
// With quiet set nothing else may be on stderr: the mistake is found before anything starts and logs.
func refusal(t *testing.T, s *harness.Server, cmd *exec.Cmd, quiet bool) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := harness.Patience(refusalTimeout)
	timer := time.AfterFunc(timeout, func() { cmd.Process.Kill() })
	err := cmd.Wait()
	took := time.Since(began)
	if !timer.Stop() {
		t.Fatalf("still running after %s; stderr ends with:\n%s", timeout, tail(stderr.String()))
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() < 1 {
		t.Fatalf("ended with %v, not with an exit code\n%s", err, stderr.String())
	}
	lines := strings.Split(strings.TrimRight(stderr.String(), "\n"), "\n")
	var ours []string
	for _, l := range lines {
		if text, ok := strings.CutPrefix(l, "kubelith: "); ok {
			ours = append(ours, text)
		}
	}
	last := lines[len(lines)-1]
	switch {
	case len(ours) != 1 || !strings.HasPrefix(last, "kubelith: "):
		t.Errorf("stderr must end with the one line that begins with %q:\n%s", "kubelith: ", tail(stderr.String()))
	case quiet && len(lines) != 1:
		t.Errorf("stderr has %d lines, not one:\n%s", len(lines), stderr.String())
	}
	if strings.Contains(stderr.String(), "goroutine ") || strings.Contains(stderr.String(), "panic:") {
		t.Errorf("stderr has a stack trace:\n%s", tail(stderr.String()))
	}
	if strings.TrimSpace(stdout.String()) != "" {
		t.Errorf("stdout is not empty: %s", stdout.String())
	}
	if left := processes(t, s); len(left) > 0 {
		t.Errorf("processes are left over: %v", left)
	}
	t.Logf("%s: %s", took.Round(time.Millisecond), last)
	return strings.TrimPrefix(last, "kubelith: ")
}

// tail is the last lines of a text.
func tail(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// contains checks a message for all its required parts.
func contains(t *testing.T, message string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(message, p) {
			t.Errorf("the message lacks %q: %s", p, message)
		}
	}
}

// processes returns those in the sandbox's network or mount namespace, except its holder.
func processes(t *testing.T, s *harness.Server) []string {
	t.Helper()
	netNS, mntNS := harness.NamespaceOf(t, s.HolderPID(), "net"), harness.NamespaceOf(t, s.HolderPID(), "mnt")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == s.HolderPID() || pid == os.Getpid() {
			continue
		}
		n, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		m, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if n != netNS && m != mntNS {
			continue
		}
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if harness.Alive(pid) {
			found = append(found, fmt.Sprintf("%d %s", pid, strings.ReplaceAll(string(cmdline), "\x00", " ")))
		}
	}
	return found
}

// contents maps each file below dir to a hash of what is in it; a directory that does not exist has none.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%x", sha256.Sum256(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// untouched compares two results of contents. The lock is the last owner's process id: it may change.
func untouched(t *testing.T, before, after map[string]string) {
	t.Helper()
	for name, sum := range before {
		switch {
		case name == "/lock":
		case after[name] == "":
			t.Errorf("%s was removed", name)
		case after[name] != sum:
			t.Errorf("%s was changed", name)
		}
	}
}
