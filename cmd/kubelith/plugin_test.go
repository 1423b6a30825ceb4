package kubelith

import (
	"io"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/plugins/pluginadmin"
)

func TestPrintPlugins(t *testing.T) {
	now := time.Now()
	var out strings.Builder
	err := printPlugins(&out, []pluginadmin.Plugin{
		{Name: "sidecar", Kind: "admission", Phase: "ready", Since: now.Add(-90 * time.Second), Starts: 2, Version: "1.0"},
		{Name: "pack", Kind: "scheduling", Phase: "backoff", Since: now.Add(-time.Second), Message: "ended with status 2; retrying in 4s"},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := `NAME      KIND         PHASE     FOR     STARTS   VERSION   MESSAGE
sidecar   admission    ready     1m30s   2        1.0       
pack      scheduling   backoff   1s      0                  ended with status 2; retrying in 4s
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := printPlugins(&out, nil, now); err != nil || out.String() != "there are no plugins\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestDescribePlugin(t *testing.T) {
	now := time.Now()
	var out strings.Builder
	err := describePlugin(&out, pluginadmin.Plugin{
		Name: "pack", Kind: "scheduling", Phase: "ready", Since: now.Add(-time.Minute), Version: "1.0", Path: "/opt/pack", SHA256: "00ff",
		Source: "/etc/kubelith/config.yaml:12", PID: 7, Starts: 1, Timeout: "50ms", Description: []byte(`{"scheduling":{"score":true,"weight":5}}`),
	}, now)
	want := `Name:              pack
Kind:              scheduling
Phase:             ready, for 1m0s
Version:           1.0
Path:              /opt/pack
SHA-256:           00ff
Wanted by:         /etc/kubelith/config.yaml:12
Process:           7
Starts:            1
Calls under way:   0
Failure policy:    as the plugin declares
Timeout:           50ms
Declares:
  scores nodes with weight 5
  failure policy Ignore
`
	if err != nil || out.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, out.String(), want)
	}
}

// Wrong arguments are reported in one line, before any request to a server.
func TestPluginArguments(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // nothing is installed there
	for args, want := range map[string]string{
		"plugin nonsense":                      `unknown command "nonsense": see kubelith plugin --help`,
		"plugin list now":                      `plugin list takes no arguments, got "now": see kubelith plugin list --help`,
		"plugin describe":                      "plugin describe needs the name of a plugin: kubelith plugin list shows them",
		"plugin restart --moon x":              "flag provided but not defined: -moon: see kubelith plugin restart --help",
		"plugin list -o yaml":                  `invalid value "yaml" for flag -o: use text or json: see kubelith plugin list --help`,
		"plugin list --run-dir=/nonexistent":   "no server runs with the socket /nonexistent/plugins.sock: start kubelith server first",
		"plugin check --log /nonexistent":      "kubelith-plugin-check is not installed: build it with 'make build'",
		"plugin restart --run-dir=/nonex/is x": "no server runs with the socket /nonex/is/plugins.sock",
	} {
		a := App(nil, io.Discard, io.Discard)
		err := a.Run(append([]string{"kubelith"}, strings.Fields(args)...))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
