package images

import (
	"maps"
	"strings"
	"testing"
)

// TestEmbedded checks the built archive when there is one.
func TestEmbedded(t *testing.T) {
	e, err := Open()
	if err == ErrNotBuilt {
		t.Skip("built without images")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, ref := range []string{Pause, Hello} {
		if !strings.HasPrefix(e.Digests[ref], "sha256:") {
			t.Errorf("%s is not embedded, only %v", ref, e.Digests)
		}
	}
}

func TestParseList(t *testing.T) {
	got, err := parseList("a:1 sha256:00\nb:1 sha256:11\n")
	if err != nil || !maps.Equal(got, map[string]string{"a:1": "sha256:00", "b:1": "sha256:11"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"a:1\n", "a:1 00\n", "a:1 sha256:00\n\n"} {
		if _, err := parseList(bad); err == nil {
			t.Errorf("parseList(%q): no error", bad)
		}
	}
}
