package node

import (
	"testing"

	"kubelith.io/kubelith/plugins/host"
)

func TestBuiltinPlugins(t *testing.T) {
	for _, tc := range []struct {
		name       string
		configured []host.Spec
		disabled   string
		want       int
		builtin    bool
	}{
		{"none configured", nil, "", 1, true},
		{"others configured", []host.Spec{{Name: "a"}, {Name: "b"}}, "", 3, true},
		{"one of that name", []host.Spec{{Name: "local", Path: "/opt/other"}}, "", 1, false},
		{"no pods", nil, "kubelet", 0, false},
		{"switched off", []host.Spec{{Name: "a"}}, "local-storage", 1, false},
	} {
		got := withBuiltinPlugins(tc.configured, withoutKubelet(func(name string) bool { return name == tc.disabled }), "/bin/dir")
		var last host.Spec
		if len(got) > 0 {
			last = got[len(got)-1]
		}
		if len(got) != tc.want || last.Builtin != tc.builtin || tc.builtin && last.Path != "/bin/dir/kubelith-local" {
			t.Errorf("%s: %+v", tc.name, got)
		}
		if len(tc.configured) > 0 && &got[0] == &tc.configured[0] && len(got) != len(tc.configured) {
			t.Errorf("%s: the list of the configuration was changed", tc.name)
		}
	}
}
