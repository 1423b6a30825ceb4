package kubelith

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/carotation"
)

// TestPrintRotation: an administrator sees the phase, each machine, and what the rotation waits for.
func TestPrintRotation(t *testing.T) {
	v := &carotation.View{
		Rotation: carotation.State{Rotation: pki.Rotation{ID: "x", Phase: pki.Sign}}, Doing: "every machine does it", Waiting: "agent b: it is not Ready",
		Machines: []carotation.Machine{{Name: "a", Role: "server", Phase: "sign"}, {Name: "b", Role: "agent", Phase: "trust", Lacks: "it is not Ready"}, {Role: "server"}},
	}
	var out bytes.Buffer
	if err := printRotation(&out, v); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a         server   sign    -\n", "b         agent    trust   it is not Ready\n", "-         server   -       -\n",
		"\nRotation x of the CAs, phase sign: every machine does it. Waiting for agent b: it is not Ready.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if got := rotationProgress(&carotation.View{}); got != "The CAs have not been rotated yet." {
		t.Error(got)
	}
	v = &carotation.View{Rotation: carotation.State{Rotation: pki.Rotation{ID: "x", Phase: "done"}, Finished: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}}
	if got := rotationProgress(v); got != "The last rotation of the CAs, x, ended at 2030-01-01T00:00:00Z." {
		t.Error(got)
	}
}
