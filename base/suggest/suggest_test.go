package suggest

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"clusterCIDR", "dataDir", "node-labels", "v"}
	for word, want := range map[string]string{
		"cluster-cidrs": `: did you mean "clusterCIDR"?`,
		"datadir":       `: did you mean "dataDir"?`,
		"node-label":    `: did you mean "node-labels"?`,
		"nodeLabels":    `: did you mean "node-labels"?`,
		"colour":        "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
