package pods

import (
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// TestResetOfANeighbour: several nodes run on one host in their own namespaces and see each other's processes; the
// directories have the same names in each. A reset of one ends no process of another.
func TestResetOfANeighbour(t *testing.T) {
	s := cluster.Get(t)
	pod := s.Run(t, harness.Pod(s.Namespace(t), "bystander", "/bin/probe", "sleep"))
	pid := s.ContainerPID(t, pod, "main")
	other := harness.New(t, harness.Options{})
	if res := other.RunBinary(t, "reset", "--yes"); res.Code != 0 {
		t.Errorf("reset: %+v", res)
	}
	if !harness.Alive(pid) {
		t.Error("reset in another sandbox ended the container")
	}
}
