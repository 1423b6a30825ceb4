package kubelith

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestFileBeforeFlags: flags may stand before and after the file.
func TestFileBeforeFlags(t *testing.T) {
	for _, c := range []struct {
		args              string
		file, sum, within string
		wrong             string
	}{
		{"f --sha256 ab --within 10s", "f", "ab", "10s", ""},
		{"--sha256=ab f", "f", "ab", "5m0s", ""},
		{"--within 1m f --sha256=ab", "f", "ab", "1m0s", ""},
		{"f g", "", "", "", `upgrade takes one file, got "g" as well`},
		{"f --oops", "", "", "", "-oops"},
		{"", "", "", "", "upgrade needs a file"},
	} {
		command := upgradeCommand()
		var file, sum string
		var within time.Duration
		command.Action = func(c *cli.Context) (err error) {
			file, err = fileBeforeFlags(c)
			sum, within = c.String("sha256"), c.Duration("within")
			return err
		}
		app := &cli.App{Commands: []*cli.Command{command}, ExitErrHandler: func(*cli.Context, error) {}}
		err := app.Run(append([]string{"kubelith", "upgrade"}, strings.Fields(c.args)...))
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%q: error %v", c.args, err)
			}
			continue
		}
		if err != nil || file != c.file || sum != c.sum || within.String() != c.within {
			t.Errorf("%q: %q %q %s, %v", c.args, file, sum, within, err)
		}
	}
}

func TestRequestedRemoved(t *testing.T) {
	const metrics = `# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested
# TYPE apiserver_requested_deprecated_apis gauge
apiserver_requested_deprecated_apis{group="a.example.org",removed_release="1.38",resource="things",subresource="status",version="v1beta1"} 1
apiserver_requested_deprecated_apis{group="b",removed_release="1.39",resource="later",subresource="",version="v1"} 1
apiserver_requested_deprecated_apis{group="c",removed_release="1.30",resource="unused",subresource="",version="v1"} 0
apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1
apiserver_request_total{group="d"} 1
`
	for to, want := range map[string][]string{
		"v1.37.9":          nil,
		"v1.38.0+kubelith": {"things/status of a.example.org/v1beta1 was requested"},
		"v1.39.1":          {"things/status of a.example.org/v1beta1 was requested", "later of b/v1 was requested"},
	} {
		if got, err := requestedRemoved([]byte(metrics), to); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", to, got, err)
		}
	}
}

func TestRemovedKinds(t *testing.T) {
	if kinds, err := removedKinds("v1.37.1", "v1.37.4"); err != nil || len(kinds) > 0 {
		t.Errorf("a patch removes %v, %v", kinds, err)
	}
	kinds, err := removedKinds("v1.24.9", "v1.25.0")
	cronJob := schema.GroupVersionKind{Group: "batch", Version: "v1beta1", Kind: "CronJob"}
	if err != nil || !slices.Contains(kinds, cronJob) {
		t.Errorf("v1.25 removes %v, %v", kinds, err)
	}
	for _, kind := range kinds {
		if strings.HasSuffix(kind.Kind, "List") {
			t.Errorf("%v", kind)
		}
	}
}
