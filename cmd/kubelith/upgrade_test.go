package kubelith

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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

// TestAwaitServersOf: a busy server is asked again, one that does not run is not.
func TestAwaitServersOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []string{`{"servers":[{"name":"a"}]}`, `{"servers":[{"name":"a"}],"space":{}}`}
		asked := 0
		cs := clientOf(t, func(*http.Request) (*http.Response, error) {
			asked++
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(answers[min(asked, 2)-1]))}, nil
		})
		all, err := awaitServersOf(t.Context(), cs)
		if err != nil || asked != 2 || len(all) != 1 || all[0].Name != "a" {
			t.Errorf("%+v, %v after %d requests", all, err, asked)
		}
		asked = 0
		cs = clientOf(t, func(r *http.Request) (*http.Response, error) {
			asked++
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		if _, err := awaitServersOf(t.Context(), cs); err == nil || asked < 3 {
			t.Errorf("a server that hangs: %v after %d requests", err, asked)
		}
		began := time.Now()
		cs = clientOf(t, func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED })
		if _, err := awaitServersOf(t.Context(), cs); err == nil || time.Since(began) > busyRetry {
			t.Errorf("a server that does not run: %v after %s", err, time.Since(began))
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func clientOf(t *testing.T, f roundTripper) kubernetes.Interface {
	t.Helper()
	cs, err := kubernetes.NewForConfig(&rest.Config{Host: "http://server", Transport: f})
	if err != nil {
		t.Fatal(err)
	}
	return cs
}
