package plugins

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestDiskByLabel is the trial of a scheduling plugin that docs/plugins.md describes, step by step.
func TestDiskByLabel(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	install(t, s, harness.BuildProgram(t, "../../plugins/examples/disk-by-label"), harness.DataDir+"/plugins/scheduling/disk-by-label")
	harness.Eventually(t, 30*time.Second, "the plugin to be ready", func() error {
		list := s.RunBinary(t, "plugin", "list").Stdout
		for line := range strings.Lines(list) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "disk-by-label" && f[2] == "ready" {
				return nil
			}
		}
		return fmt.Errorf("%s", list)
	})
	s.Restart(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "quick", "sleep", "1000")
	pod.Labels = map[string]string{"disk": "fast"}
	refused(t, s, s.Create(t, pod), "1 no disk of the kind that the pod wants")
	s.Kubectl(t, "label", "node", "--all", "disk=fast")
	s.WaitRunning(t, pod)
	if metrics := s.Kubectl(t, "get", "--raw", "/metrics"); !strings.Contains(metrics, `kubelith_plugin_calls_total{code="OK",kind="scheduling",method="Filter",plugin="disk-by-label"}`) {
		t.Error("the metrics do not count its calls")
	}
}
