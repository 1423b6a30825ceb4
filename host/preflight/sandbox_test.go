package preflight

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIsolatedSparesMainThread: the process as a whole stays in its namespaces, whichever thread the runtime takes.
func TestIsolatedSparesMainThread(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		err := isolated(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("the work runs on the main thread")
			}
			return nil
		})
		if err != nil {
			t.Skipf("no namespaces here: %v", err)
		}
	}
	if after, err := os.Readlink("/proc/self/ns/net"); err != nil || after != before {
		t.Errorf("the process has moved from %s to %s: %v", before, after, err)
	}
}
