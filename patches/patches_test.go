package patches

import (
	"runtime/debug"
	"slices"
	"testing"
	"testing/fstest"
)

func TestApplied(t *testing.T) {
	files := fstest.MapFS{"kubernetes/loops.patch": {Data: []byte("Subject: kubelet: no loops\n\nWhy.\n--- a/x.go\n")}}
	for _, c := range []struct {
		name    string
		modules []string
		want    []string
	}{
		{"none", nil, nil},
		{"with a patch", []string{"k8s.io/kubernetes v1.2.3"}, []string{"loops: kubelet: no loops (k8s.io/kubernetes v1.2.3)"}},
		{"with a major version", []string{"k8s.io/kubernetes/v2 v2.2.3"}, []string{"loops: kubelet: no loops (k8s.io/kubernetes/v2 v2.2.3)"}},
		{"without", []string{"k8s.io/api v1.2.3"}, nil},
	} {
		if got := applied(c.modules, files); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestReplaced(t *testing.T) {
	for _, c := range []struct {
		name    string
		replace *debug.Module
		want    []string
	}{
		{"by a directory", &debug.Module{Path: "./.cache/patched/kubernetes", Version: "(devel)"}, []string{"k8s.io/kubernetes v1.2.3"}},
		{"not at all", nil, nil},
		{"by a version", &debug.Module{Path: "k8s.io/kubernetes", Version: "v1.2.4"}, nil},
	} {
		info := &debug.BuildInfo{Deps: []*debug.Module{{Path: "k8s.io/kubernetes", Version: "v1.2.3", Replace: c.replace}}}
		if got := replaced(info); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
