package node

import (
	"testing"

	"kubelith.io/kubelith/plugins/host"
	pluginprocess "kubelith.io/kubelith/plugins/process"
)

func spec(name string) host.Spec {
	return host.Spec{Spec: pluginprocess.Spec{Name: name, Path: "/opt/" + name}}
}

func TestBuiltinPlugins(t *testing.T) {
	for _, tc := range []struct {
		name       string
		configured []host.Spec
		disabled   string
		want       int
		builtin    bool
	}{
		{"none configured", nil, "", 1, true},
		{"others configured", []host.Spec{spec("a"), spec("b")}, "", 3, true},
		{"one of that name", []host.Spec{spec("local")}, "", 1, false},
		{"no pods", nil, "kubelet", 0, false},
		{"switched off", []host.Spec{spec("a")}, "local-storage", 1, false},
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
