package patches

import (
	"runtime/debug"
	"slices"
	"testing"
	"testing/fstest"
)

func TestApplied(t *testing.T) {
	files := fstest.MapFS{"loops.patch": {Data: []byte("Subject: kubelet: no loops\n\nWhy.\n--- a/x.go\n")}}
	line := []string{"loops: kubelet: no loops (k8s.io/kubernetes v1.2.3)"}
	for _, c := range []struct {
		name    string
		path    string
		replace *debug.Module
		want    []string
	}{
		{"replaced by a directory", "k8s.io/kubernetes", &debug.Module{Path: "./.cache/patched/kubernetes", Version: "(devel)"}, line},
		{"upstream's", "k8s.io/kubernetes", nil, nil},
		{"replaced by a version", "k8s.io/kubernetes", &debug.Module{Path: "k8s.io/kubernetes", Version: "v1.2.4"}, nil},
		{"another module replaced", "k8s.io/api", &debug.Module{Path: "./api", Version: "(devel)"}, nil},
	} {
		info := &debug.BuildInfo{Deps: []*debug.Module{{Path: c.path, Version: "v1.2.3", Replace: c.replace}}}
		if got := applied(info, files); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
