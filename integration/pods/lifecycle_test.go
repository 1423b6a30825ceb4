package pods

import (
	"fmt"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestTermination measures the time between the request to delete and the end of the process: not before its grace
// ends, and long before the default of 30 s.
func TestTermination(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		command     []string
		grace       int64
		least, most time.Duration
	}{
		{"obeys", []string{"/bin/probe", "sleep", "--on-term=1s"}, 30, time.Second, 25 * time.Second},
		{"ignores", harness.Shell("trap '' TERM; while true; do sleep 0.1; done"), 3, 3 * time.Second, 25 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			pod := harness.Pod(ns, tc.name, tc.command...)
			pod.Spec.TerminationGracePeriodSeconds = &tc.grace
			pod = s.Run(t, pod)
			pid := s.ContainerPID(t, pod, "main")
			began := time.Now()
			s.Kubectl(t, "-n", ns, "delete", "pod", tc.name, "--wait=false")
			harness.Eventually(t, time.Minute, "the process to end", func() error {
				if harness.Alive(pid) {
					return fmt.Errorf("it lives")
				}
				return nil
			})
			if took := time.Since(began); took < tc.least || took > tc.most {
				t.Errorf("took %s, not %s to %s", took, tc.least, tc.most)
			}
			waitGone(t, s, pod)
		})
	}
}
