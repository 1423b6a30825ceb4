package process

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

func TestTmp(t *testing.T) {
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	deployment(t, s, ns, "app", 2)
	harness.Eventually(t, harness.PodTimeout, "the Deployment", func() error { return rolledOut(s, t, ns, "app") })
	show := func(what string) {
		mounts, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.HolderPID()))
		t.Logf("%s", what)
		for l := range strings.Lines(string(mounts)) {
			if strings.Contains(l, "projected") {
				t.Log(strings.TrimSpace(l))
			}
		}
	}
	show("start")
	s.Kill9(t)
	for i := range 4 {
		s.Launch(t)
		time.Sleep(time.Duration(1500+400*i) * time.Millisecond)
		s.Kill9(t)
		show(fmt.Sprint("kill ", i))
	}
	s.Launch(t)
	s.WaitReady(t)
	show("ready")
	s.Kubectl(t, "-n", ns, "set", "env", "deployment/app", "X=1")
	for i := range 20 {
		time.Sleep(time.Second)
		if rolledOut(s, t, ns, "app") == nil && agree(t.Context(), t, s) == nil {
			t.Logf("converged %d", i)
			return
		}
	}
	show("end")
	t.Log(s.Kubectl(t, "-n", ns, "get", "pods"))
	t.Fail()
}
