package log

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
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
	t.Parallel()
	began := time.Now()
	c := harness.StartCluster(t, harness.ClusterOptions{Agents: 1})
	for _, port := range []string{"6443", "10250"} {
		strangers(t, c.Server, port)
	}
	up := map[*harness.Server]time.Time{}
	for _, n := range c.Nodes() { // a start may be slow, but has an end
		harness.Eventually(t, 2*time.Minute, "all components of "+n.NodeName(), func() error {
			res := c.Server.TryKubectl(t, "get", "--raw", "/api/v1/nodes/"+n.NodeName()+"/proxy/metrics")
			if res.Code != 0 { // a kubelet answers once it has its serving certificate, which may be after Ready
				return errors.New(res.Stderr)
			}
			return harness.AllUp(res.Stdout)
		})
		up[n] = time.Now()
	}
	time.Sleep(idle)
	for _, s := range c.Nodes() {
		lines := strings.Split(strings.TrimSpace(s.Logs()), "\n")
		t.Logf("%s: %d lines", s.NodeName(), len(lines))
		for _, line := range lines {
			if level(line) == "" {
				t.Errorf("%s: not a line of the log: %s", s.NodeName(), line)
			}
			if level(line) != "warn" && level(line) != "error" {
				continue
			}
			text, _, _ := strings.Cut(line, " ")
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Errorf("%s: %v: %s", s.NodeName(), err, line)
			}
			if at.After(began.Add(time.Minute)) && at.Before(up[s]) {
				// For a minute, base/logging lowers lines that are harmless during a start; this start took longer.
				t.Logf("%s, not judged: %s", s.NodeName(), line)
				continue
			}
			if !slices.ContainsFunc(toActOn, func(r *regexp.Regexp) bool { return r.MatchString(line) }) {
				t.Errorf("%s: %s", s.NodeName(), line)
			}
		}
	}
}

// strangers connect to a port and send nothing, no TLS, or no HTTP/2 after they negotiated it: the lines they cause
// have the log's format.
func strangers(t *testing.T, s *harness.Server, port string) {
	t.Helper()
	for _, words := range []string{"", "hello\r\n\r\n", "tls"} {
		conn, err := s.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			t.Fatal(err)
		}
		if words != "tls" {
			io.WriteString(conn, words)
			conn.Close()
			continue
		}
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err := secure.HandshakeContext(t.Context()); err != nil {
			t.Error(err)
		}
		io.WriteString(secure, "this is no preface of HTTP/2, but as long as one\r\n\r\n")
		io.ReadAll(secure) // until the server has read it
		secure.Close()
	}
}

// toActOn are the warnings that a host of tests deserves: what a container or a small VM lacks.
var toActOn = []*regexp.Regexp{
	// check reports what is missing and what that means: cgroup v1, capabilities, the clock's source.
	regexp.MustCompile(` warn +component=check `),
	// Where /proc/sys is another's: connections beyond the host's table are dropped.
	regexp.MustCompile(` warn +component=proxy cannot set the size of the connection tracking table, keeping the host's: `),
	// Without the host's /proc/1/ns the kernel kills our processes before those of pods.
	regexp.MustCompile(` error component=kubelet Failed to ensure process in container with oom score err="failed to find pid namespace of init process"`),
	// A slow disk. One line a minute.
	regexp.MustCompile(` warn +component=etcd apply request took too long`),
	// A slow machine: how long the start, a pass of the kubelet and a sync of the disk took.
	regexp.MustCompile(` warn +component=(kubelith|apiserver) not ready after `),
	regexp.MustCompile(` error component=kubelet Housekeeping took longer than expected`),
	regexp.MustCompile(` warn +component=etcd (the disk is slow|slow fdatasync)`),
	// The harness switches it on.
	regexp.MustCompile(` warn +component=\S+ Mutation detector is enabled`),
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
