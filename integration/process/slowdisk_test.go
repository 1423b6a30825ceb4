package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/integration/harness"
)

// slowDisk is how long a sync to disk takes in TestSlowDisk; KUBELITH_TEST_SYNC_DELAY has another duration.
const slowDisk = 100 * time.Millisecond

// TestSlowDisk starts a new cluster on a disk that takes its time for each fsync and fdatasync: it gets there, with a Node
// that is Ready, however long that takes.
func TestSlowDisk(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace, which delays the system calls, is not installed")
	}
	delay := slowDisk
	if text := os.Getenv("KUBELITH_TEST_SYNC_DELAY"); text != "" {
		if delay, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	s := harness.New(t, harness.Options{NoTestImage: true})
	args := []string{"--follow-forks", "--quiet=all", "--seccomp-bpf", "--trace=fsync,fdatasync", "--output=/dev/null",
		fmt.Sprintf("--inject=fsync,fdatasync:delay_enter=%d", delay.Microseconds()), s.BinaryPath()}
	log, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := s.Command(strace, append(args, s.ServerArgs()...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			lines := strings.Split(string(text), "\n")
			t.Log(strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
	harness.Eventually(t, time.Minute+300*delay, "the node to be Ready", func() error {
		select {
		case err := <-ended:
			t.Fatalf("the server has ended: %v", err)
		default:
		}
		if !exists(s, harness.AdminKubeconfig) {
			return errors.New("no kubeconfig yet")
		}
		// Not kubectl wait, whose limit includes the reads: those wait for the disk as well.
		res := s.TryKubectl(t, "get", "nodes", `--output=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if res.Code != 0 || res.Stdout != "True" {
			return fmt.Errorf("its condition Ready is %q: %s", res.Stdout, res.Stderr)
		}
		return nil
	})
	t.Logf("Ready after %s with %s for each sync", time.Since(began).Round(100*time.Millisecond), delay)
}
