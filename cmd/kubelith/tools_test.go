package kubelith

import (
	"io"
	"slices"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/config"
)

func TestSplitTakesOnlyOwnLeadingFlags(t *testing.T) {
	for _, c := range []struct{ args, ours, theirs []string }{
		{nil, nil, nil},
		{[]string{"images", "ls"}, nil, []string{"images", "ls"}},
		{[]string{"--run-dir", "/r", "images", "ls"}, []string{"--run-dir", "/r"}, []string{"images", "ls"}},
		{[]string{"--run-dir=/r", "--data-dir=/d", "-n", "x", "images"}, []string{"--run-dir=/r", "--data-dir=/d"}, []string{"-n", "x", "images"}},
		{[]string{"--namespace", "k8s.io", "--run-dir=/r"}, nil, []string{"--namespace", "k8s.io", "--run-dir=/r"}},
		{[]string{"--run-dir"}, nil, []string{"--run-dir"}},
	} {
		ours, theirs := split(c.args, config.DirFlags())
		if !slices.Equal(ours, c.ours) || !slices.Equal(theirs, c.theirs) {
			t.Errorf("%q: ours %q, theirs %q", c.args, ours, theirs)
		}
	}
}

// TestAsksCluster: kubectl on an agent says where to run it, except for commands that need no cluster or name one.
func TestAsksCluster(t *testing.T) {
	for args, want := range map[string]bool{
		"get nodes":                    true,
		"-n default get pods":          true,
		"--namespace=default get pods": true,
		"version":                      true,
		"":                             false,
		"--help":                       false,
		"get --help":                   false,
		"version --client":             false,
		"version --client=true":        false,
		"config view":                  false,
		"completion bash":              false,
		"get nodes --kubeconfig /x":    false,
		"--kubeconfig=/x get nodes":    false,
		"-s https://192.0.2.1 get ns":  false,
		"--server=https://x get nodes": false,
	} {
		if got := asksCluster(strings.Fields(args)); got != want {
			t.Errorf("kubectl %s: %v, want %v", args, got, want)
		}
	}
}

// All wrong flags are reported at once.
func TestWrongFlags(t *testing.T) {
	for args, want := range map[string][]string{
		"check --nod-ip 192.0.2.1 --data-dir /x --tls-sann=y": {"flag provided but not defined: -nod-ip: see kubelith check --help", "flag provided but not defined: -tls-sann: see kubelith check --help"},
		"check agent --serverr=x --node-ips y":                {"flag provided but not defined: -serverr: see kubelith check agent --help", "flag provided but not defined: -node-ips: see kubelith check agent --help"},
		"--moon server":                                       {"flag provided but not defined: -moon: see kubelith --help"},
		"server --https-port=x ---moon --sun":                 {`invalid value "x" for flag -https-port: parse error: see kubelith server --help`, "bad flag syntax: ---moon: see kubelith server --help", "flag provided but not defined: -sun: see kubelith server --help"},
	} {
		err := App(nil, io.Discard, io.Discard).Run(append([]string{"kubelith"}, strings.Fields(args)...))
		if want := strings.Join(want, "\n"); err == nil || err.Error() != want {
			t.Errorf("%s: got\n%v\nwant\n%s", args, err, want)
		}
	}
}
