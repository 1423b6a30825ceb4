package plugins

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// dropped is where an operator puts an admission plugin.
func dropped(name string) string { return harness.DataDir + "/plugins/admission/" + name }

// TestProcesses follows the process of a plugin in the directory of a server through the life of both.
func TestProcesses(t *testing.T) {
	t.Parallel()
	program := harness.BuildProgram(t, "../../plugins/examples/short-secrets")
	const name = "short-secrets"
	s := harness.New(t, harness.Options{NoTestImage: true})
	install(t, s, program, dropped(name))
	s.Launch(t)
	s.WaitReady(t)
	harness.Eventually(t, time.Minute, "the plugin reviews", func() error { return shortSecretDenied(t, s) })
	before := processes(t, s, name)
	if len(before) != 1 {
		t.Fatalf("processes of the plugin: %v", before)
	}
	limited(t, before[0])

	// Another file takes over without a request that fails.
	install(t, s, program, dropped(name), 0)
	harness.Eventually(t, time.Minute, "another process serves", func() error {
		if err := shortSecretDenied(t, s); err != nil {
			t.Errorf("during the replacement: %v", err)
		}
		if now := processes(t, s, name); len(now) != 1 || now[0] == before[0] {
			return fmt.Errorf("processes %v, before %v", now, before)
		}
		return nil
	})

	s.Kill9(t)
	harness.Eventually(t, 5*time.Second, "the plugin has ended with the server", func() error {
		if left := processes(t, s, name); len(left) > 0 {
			return fmt.Errorf("processes %v", left)
		}
		return nil
	})
	s.Launch(t)
	s.WaitReady(t)
	harness.Eventually(t, time.Minute, "the plugin reviews after the next start", func() error { return shortSecretDenied(t, s) })

	if err := os.Remove(s.Path(dropped(name))); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, time.Minute, "the plugin is gone with its file", func() error {
		if err := shortSecretDenied(t, s); err != errShortSecret {
			return fmt.Errorf("short Secrets are not allowed: %v", err)
		}
		if left := processes(t, s, name); len(left) > 0 {
			return fmt.Errorf("processes %v", left)
		}
		return nil
	})
	install(t, s, program, dropped(name))
	harness.Eventually(t, time.Minute, "the plugin reviews again", func() error { return shortSecretDenied(t, s) })
	s.Stop(t)
	if left := processes(t, s, name); len(left) > 0 {
		t.Errorf("after the stop: processes %v", left)
	}
	if left, _ := filepath.Glob(s.Path(harness.RunDir) + "/p/*"); len(left) > 0 {
		t.Errorf("after the stop: %v", left)
	}
}

// limited asserts on the kernel's own files: the default limit of memory.
func limited(t *testing.T, pid int) {
	t.Helper()
	file := "memory.limit_in_bytes"
	if harness.CgroupV2() {
		file = "memory.max"
	}
	content, err := os.ReadFile(filepath.Join(harness.CgroupDir(t, pid, "memory"), file))
	if err != nil || strings.TrimSpace(string(content)) != strconv.Itoa(256<<20) {
		t.Errorf("%s of the plugin is %q (%v), want 256 MiB", file, content, err)
	}
}
