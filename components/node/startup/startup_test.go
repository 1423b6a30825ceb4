package startup

import (
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
)

func TestDone(t *testing.T) {
	if now := debug.SetGCPercent(-1); now != -1 {
		t.Errorf("the collector runs before main, at %d %%", now)
	}
	Done()
	if now := debug.SetGCPercent(percent); now != percent || percent <= 0 {
		t.Errorf("after Done the collector runs at %d %%, want %d", now, percent)
	}
}

// It has to come early: see the package's comment.
func TestImportsNothing(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skipf("go list: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		if strings.Contains(path, ".") && !strings.HasSuffix(path, "/startup") {
			t.Errorf("imports %s", path)
		}
	}
}
