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

	seen []string // each mount and rule, to tell which are more
}

func (m measurement) String() string {
	return fmt.Sprintf("%d mounts, %d network namespaces, %d rules, %d links, %d containers, %.0f goroutines, %.0f MB",
		m.mounts, m.namespaces, m.rules, m.links, m.containers, m.goroutines, m.memory)
}

// settled measures until nothing changes any more for 15 seconds, for two minutes at most: pods that were deleted take
// a while to go, and what a start creates last takes a while to appear.
func settled(t *testing.T, s *harness.Server) measurement {
	t.Helper()
	last, same := measure(t, s), 0
	for range 24 {
		time.Sleep(5 * time.Second)
		now := measure(t, s)
		if same++; !now.as(last) {
			same = 0
		}
		if last = now; same == 3 {
			break
		}
	}
	return last
}

// settledTo is settled, but waits up to four minutes for what is more than before: the kubelet removes ended sandboxes
// and their mounts once a minute (ContainerGCPeriod), each in the round after that of its containers.
func settledTo(t *testing.T, s *harness.Server, before measurement) measurement {
	t.Helper()
	now := settled(t, s)
	for range 48 {
		if len(now.exceeds(before)) == 0 {
			break
		}
		time.Sleep(5 * time.Second)
		now = measure(t, s)
	}
	return now
}

// as reports whether nothing has changed except what varies.
func (m measurement) as(last measurement) bool {
	return m.mounts == last.mounts && m.namespaces == last.namespaces && m.rules == last.rules && m.links == last.links &&
		m.containers == last.containers && m.goroutines >= last.goroutines*0.98
}

func measure(t *testing.T, s *harness.Server) measurement {
	t.Helper()
	split := func(text string) []string { return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }) }
	lines := func(text string) int { return len(split(text)) }
	mounts := mountsOf(t, s)
	rules := s.Exec(t, "sh", "-c", "nft -a list ruleset | grep -E 'handle|elements' | grep -v counter || true")
	m := measurement{
		mounts:     lines(mounts),
		namespaces: strings.Count(mounts, " - nsfs "), // each pod's is mounted
		rules:      lines(rules),
		links:      lines(s.Exec(t, "ip", "-o", "link")),
		containers: lines(s.Exec(t, s.BinaryPath(), "ctr", "-n", "k8s.io", "tasks", "ls", "-q")),
		memory:     harness.AnonymousMB(t, s.PID()),
	}
	for _, line := range split(mounts) {
		if f := strings.Fields(line); len(f) > 4 {
			m.seen = append(m.seen, f[4])
		}
	}
	for _, line := range split(rules) {
		rule, _, _ := strings.Cut(line, " # handle")
		m.seen = append(m.seen, strings.TrimSpace(rule))
	}
	for line := range strings.Lines(s.Kubectl(t, "get", "--raw", "/metrics")) {
		if value, is := strings.CutPrefix(line, "go_goroutines "); is {
			var err error
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

// mountsOf are the lines of the server's mountinfo.
func mountsOf(t *testing.T, s *harness.Server) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// more lists the mounts and rules that were not there before.
func (m measurement) more(before measurement) (out []string) {
	times := map[string]int{}
	for _, line := range before.seen {
		times[line]++
	}
	for _, line := range m.seen {
		if times[line]--; times[line] < 0 {
			out = append(out, line)
		}
	}
	return out
}
