package pods

import (
	"bufio"
	"fmt"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestLogsFollow: lines arrive while the container writes them, and the stream ends with the container.
func TestLogsFollow(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Run(t, harness.Pod(ns, "talks", harness.Shell("i=0; until [ -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.2; done")...))
	cmd := s.KubectlCommand("-n", ns, "logs", "--follow", "talks")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(harness.Patience(time.Minute), func() { cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	for i := 1; i <= 5; i++ {
		if !lines.Scan() || lines.Text() != fmt.Sprint("line ", i) {
			t.Fatalf("line %d is %q", i, lines.Text())
		}
	}
	s.Kubectl(t, "-n", ns, "exec", "talks", "--", "touch", "/stop") // the container runs: the lines came live
	for lines.Scan() {
	}
	if err := cmd.Wait(); err != nil || !watchdog.Stop() {
		t.Errorf("kubectl logs --follow did not end with the container: %v", err)
	}
}
