// Package restart tests that a component is not the cluster: each that can be started again in place is broken, in each
// way, while pods, Services, DNS and the API are in use.
//
// The faults are set off through a socket that the server opens only when KUBELITH_TEST_FAULTS names it
// (components/node/faults). Only root may set the server's environment and so have it opened, and the socket is
// root's: it gives no user new rights. With it a hang is noticed within seconds and not minutes.
//
// KUBELITH_RESTARTS is the number of rounds, one by default: `KUBELITH_RESTARTS=20 go test ./integration/restart`.
package restart

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

const socket = "/run/kubelith-faults.sock"

var options = harness.Options{Env: []string{"KUBELITH_TEST_FAULTS=" + socket}, Args: []string{"--apiserver-arg=profiling=true"}, Panics: true}

var cluster = harness.NewShared(options)

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// everyone returns all components that can be broken.
func everyone(t *testing.T, s *harness.Server) []string {
	t.Helper()
	names, err := tell(s, "list")
	if err != nil || names == "" {
		t.Fatalf("the components that can be broken: %q, %v", names, err)
	}
	return strings.Fields(names)
}

// rounds is how often each component is broken in each way.
func rounds(t *testing.T) int {
	text := os.Getenv("KUBELITH_RESTARTS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KUBELITH_RESTARTS: %v", err)
	}
	return n
}

// breaks triggers a fault.
func breaks(t *testing.T, s *harness.Server, component, fault string) {
	t.Helper()
	if err := breakOne(s, component, fault); err != nil {
		t.Fatal(err)
	}
}

func breakOne(s *harness.Server, component, fault string) error {
	answer, err := tell(s, component+" "+fault)
	if err != nil || answer != "ok" {
		return fmt.Errorf("break %s by %s: %s (%v)", component, fault, answer, err)
	}
	return nil
}

// tell sends a line to the socket and returns the answer.
func tell(s *harness.Server, line string) (string, error) {
	conn, err := net.Dial("unix", s.Path(socket))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	fmt.Fprintln(conn, line)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSuffix(answer, "\n"), err
}

// metrics are the server's, by name and labels as they are written.
func metrics(t *testing.T, s *harness.Server) map[string]float64 {
	t.Helper()
	text, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseFloat(value, 64); ok && err == nil {
			out[name] = n
		}
	}
	return out
}

func of(metric, component string) string {
	return fmt.Sprintf("kubelith_component_%s{component=%q}", metric, component)
}

// again waits until each component was started again since before and is up.
func again(t *testing.T, s *harness.Server, before map[string]float64, components ...string) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, "components to be up again", func() error {
		now := metrics(t, s)
		var down []string
		for _, c := range components {
			if now[of("restarts_total", c)] <= before[of("restarts_total", c)] || now[of("up", c)] != 1 {
				down = append(down, c)
			}
		}
		if len(down) > 0 {
			return fmt.Errorf("not: %s", strings.Join(down, ", "))
		}
		return nil
	})
}
