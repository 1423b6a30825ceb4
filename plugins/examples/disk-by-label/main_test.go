package main

import (
	"testing"

	"kubelith.io/kubelith/plugins/sdk"
)

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		pod, node string
		fits      bool
	}{{"", "", true}, {"", "fast", true}, {"fast", "fast", true}, {"fast", "", false}, {"fast", "slow", false}} {
		why := filter(t.Context(), &sdk.Pod{Labels: map[string]string{"disk": c.pod}}, &sdk.Node{Labels: map[string]string{"disk": c.node}})
		if (why == "") != c.fits {
			t.Errorf("pod %q, node %q: %q", c.pod, c.node, why)
		}
	}
}
