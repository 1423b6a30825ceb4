package soak

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// measurement is what may be left over.
type measurement struct {
	mounts, namespaces, rules, links, containers int
	goroutines, memory                           float64 // memory in MB
}

func (m measurement) String() string {
	return fmt.Sprintf("%d mounts, %d network namespaces, %d rules, %d links, %d containers, %.0f goroutines, %.0f MB",
		m.mounts, m.namespaces, m.rules, m.links, m.containers, m.goroutines, m.memory)
}

// settled measures until nothing gets less any more, for a minute at most: pods that were deleted take a while to go.
func settled(t *testing.T, s *harness.Server) measurement {
	t.Helper()
	last := measure(t, s)
	for range 12 {
		time.Sleep(5 * time.Second)
		now := measure(t, s)
		if now.mounts >= last.mounts && now.namespaces >= last.namespaces && now.rules >= last.rules && now.links >= last.links &&
			now.goroutines >= last.goroutines*0.98 {
			return now
		}
		last = now
	}
	return last
}

func measure(t *testing.T, s *harness.Server) measurement {
	t.Helper()
	lines := func(text string) int { return len(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })) }
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	m := measurement{
		mounts:     lines(string(mounts)),
		namespaces: strings.Count(string(mounts), " - nsfs "), // each pod's is mounted
		rules:      lines(s.Exec(t, "sh", "-c", "nft -a list ruleset | grep -E 'handle|elements' | grep -v counter || true")),
		links:      lines(s.Exec(t, "ip", "-o", "link")),
		containers: lines(s.Exec(t, s.BinaryPath(), "ctr", "-n", "k8s.io", "tasks", "ls", "-q")),
		memory:     harness.AnonymousMB(t, s.PID()),
	}
	for line := range strings.Lines(s.Kubectl(t, "get", "--raw", "/metrics")) {
		if value, is := strings.CutPrefix(line, "go_goroutines "); is {
			if m.goroutines, err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	if m.goroutines == 0 {
		t.Fatal("the metrics have no go_goroutines")
	}
	return m
}
