package log

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestIdle: a server and an agent that start and then have nothing to do log nothing at warn or error, but what an
// operator of this machine is to act on. KUBELITH_IDLE is how long they idle.
func TestIdle(t *testing.T) {
	idle := 20 * time.Second
	if text := os.Getenv("KUBELITH_IDLE"); text != "" {
		var err error
		if idle, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	c := harness.StartCluster(t, harness.ClusterOptions{Agents: 1})
	time.Sleep(idle)
	for _, s := range c.Nodes() {
		lines := strings.Split(strings.TrimSpace(s.Logs()), "\n")
		t.Logf("%s: %d lines", s.NodeName(), len(lines))
		for _, line := range lines {
			if level(line) == "" {
				t.Errorf("%s: not a line of the log: %s", s.NodeName(), line)
			}
			if wrong := level(line) == "warn" || level(line) == "error"; wrong && !slices.ContainsFunc(toActOn, func(r *regexp.Regexp) bool { return r.MatchString(line) }) {
				t.Errorf("%s: %s", s.NodeName(), line)
			}
		}
	}
}

// toActOn are lines of warning that are right: what a host of tests lacks.
var toActOn = []*regexp.Regexp{
	regexp.MustCompile(`component=check `),
}

var form = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+ (error|warn|info|debug|trace) +component=\S+ \S`)

// level is that of a line, or "" when it is no entry of the log. The rest of an entry of many lines is indented.
func level(line string) string {
	if strings.HasPrefix(line, "\t") {
		return "more"
	}
	m := form.FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	return m[1]
}

// most returns the line that is written most often, and how often. Lines that differ in digits alone are the same.
func most(log string) (string, int) {
	digits := regexp.MustCompile(`[0-9]+|[0-9a-f]{8,}`)
	seen, often := map[string]int{}, ""
	for line := range strings.Lines(log) {
		line = digits.ReplaceAllString(line, "N")
		if seen[line]++; seen[line] > seen[often] {
			often = line
		}
	}
	return fmt.Sprintf("%.300s", often), seen[often]
}
