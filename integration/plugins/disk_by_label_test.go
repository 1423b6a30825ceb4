package plugins

import (
	"regexp"
	"strings"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// putDiskByLabel begins the trial of a scheduling plugin that docs/plugins.md describes, step by step: it joins the
// scheduler at the server's next start. testDiskByLabel has the steps after that.
func putDiskByLabel(t *testing.T, s *harness.Server) {
	t.Helper()
	install(t, s, harness.BuildProgram(t, "../../plugins/examples/disk-by-label"), harness.DataDir+"/plugins/scheduling/disk-by-label")
	wait(t, s, "disk-by-label", "is ready", ready)
	if list := s.RunBinary(t, "plugin", "list").Stdout; !regexp.MustCompile(`(?m)^disk-by-label +scheduling +ready `).MatchString(list) {
		t.Errorf("kubelith plugin list printed\n%s", list)
	}
}

func testDiskByLabel(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "quick", "sleep", "1000")
	pod.Labels = map[string]string{"disk": "fast"}
	refused(t, s, s.Create(t, pod), "1 no disk of the kind that the pod wants")
	s.Kubectl(t, "label", "node", "--all", "disk=fast")
	s.WaitRunning(t, pod)
	metrics, err := metricsOf(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(metrics, `kubelith_plugin_calls_total{code="OK",kind="scheduling",method="Filter",plugin="disk-by-label"}`) {
		t.Error("the metrics do not count its calls")
	}
}
