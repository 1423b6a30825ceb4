package kubelith

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/record"
	"kubelith.io/kubelith/trace/render"
)

func TestTraceRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"":                                 "trace needs the type and the name of one object",
		"pod/a pod/b c":                    "trace needs the type and the name of one object",
		"pod/web -o yaml":                  `invalid value "yaml" for flag -o: use text, json, html or otlp: see kubelith trace --help`,
		"pod/web --timeout 5s":             "--timeout goes with --follow",
		"pod/web -f --timeout 0s":          "--timeout 0s: use a time above 0",
		"--slowest --stats":                "--slowest, --stats and --serve exclude each other",
		"--slowest many":                   "--slowest many: use a number from 1 to 500",
		"--slowest 0":                      "--slowest 0: use a number from 1 to 500",
		"--slowest 5 6":                    `unexpected argument "6"`,
		"--stats -o html":                  "-o html goes with TYPE/NAME",
		"--serve -o json":                  "-o json goes with TYPE/NAME",
		"--serve 0.0.0.0:80":               "--serve 0.0.0.0:80: the page has your rights, so it is served on this machine only",
		"--stats 5":                        `unexpected argument "5"`,
		"--stats --follow":                 "--follow and --all go with TYPE/NAME",
		"pod/web --moon":                   "flag provided but not defined: -moon: see kubelith trace --help",
		"pod/web --kubeconfig=/no/where":   "--kubeconfig: stat /no/where: no such file or directory",
		"--slowest --kubeconfig=/no/where": "--kubeconfig: stat /no/where: no such file or directory",
	} {
		err := App(nil, io.Discard, io.Discard).Run(append([]string{"kubelith", "trace"}, strings.Fields(line)...))
		if err == nil || !strings.HasPrefix(err.Error(), want) || slices.Contains([]byte(err.Error()), '\n') {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}

// fakeRecorder answers with timelines, one after the other, and then with err.
type fakeRecorder struct {
	timelines []*trace.Timeline
	err       error
	asked     []uint64
	again     *trace.Timeline // for requests that do not wait, when the others are over
}

func (f *fakeRecorder) Timeline(ctx context.Context, _, _, _ string, after uint64) (*trace.Timeline, error) {
	f.asked = append(f.asked, after)
	if len(f.timelines) == 0 {
		if f.again != nil && after == 0 {
			return f.again, nil
		}
		if f.err == nil {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, f.err
	}
	t := f.timelines[0]
	f.timelines = f.timelines[1:]
	return t, nil
}

func (f *fakeRecorder) Recent(context.Context, int, uint64) (*api.Recent, error) {
	return &api.Recent{Seq: 7}, f.err
}
func (f *fakeRecorder) Slowest(context.Context, int) (*api.Slowest, error) { return nil, f.err }
func (f *fakeRecorder) Stats(context.Context) (*api.Stats, error)          { return nil, f.err }

func timelineOf(t *testing.T, name string) *trace.Timeline {
	t.Helper()
	text, err := os.ReadFile("../../trace/render/testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var timeline trace.Timeline
	if err := json.Unmarshal(text, &timeline); err != nil {
		t.Fatal(err)
	}
	return &timeline
}

// Off a terminal each stage is one line, when it has ended, and once.
func TestFollowPrintsStagesOnce(t *testing.T) {
	whole := timelineOf(t, "deployment")
	part := *whole
	part.Settled, part.Seq, part.Spans, part.End = false, 40, slices.Clone(whole.Spans[:60]), whole.Spans[59].End
	client := &fakeRecorder{timelines: []*trace.Timeline{&part, whole}}
	var out bytes.Buffer
	f := &follower{client: client, out: &out}
	got, err := f.follow(t.Context(), record.Ref{Resource: "deployments.apps", Name: "web"})
	if err != nil || got != whole || !slices.Equal(client.asked, []uint64{0, 40}) {
		t.Fatalf("%v, %v, asked after %v", got, err, client.asked)
	}
	lines := strings.Split(out.String(), "\n")
	for _, s := range whole.Spans {
		if s.Parent != 0 || s.Wait {
			continue
		}
		if line := render.Line(whole, &s); !slices.Contains(lines, line) {
			t.Errorf("no line %q", line)
		}
	}
	if text := out.String(); strings.Count(text, "pull ghcr.io/acme/web:1.4.2, 96 MB") != 1 || !strings.Contains(text, "Where the time went") || strings.Contains(text, "\x1b") {
		t.Errorf("got %s", text)
	}
}

func TestFollowEnds(t *testing.T) {
	ref := record.Ref{Resource: "pods", Namespace: "shop", Name: "web"}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	failing := timelineOf(t, "failing")
	f := &follower{client: &fakeRecorder{timelines: []*trace.Timeline{failing}, again: failing}, out: io.Discard}
	if got, err := f.follow(ctx, ref); got != failing || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, %v", got, err)
	}
	f.client = &fakeRecorder{err: apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "web")}
	got, err := f.follow(t.Context(), ref)
	if got != nil || !strings.HasPrefix(recorderError(err, ref).Error(), "no record of pod/web in namespace shop: the recorder keeps 24 h and 32 MB at most") {
		t.Errorf("got %v, %v", got, err)
	}
}

// The locale decides which characters a bar is drawn with.
func TestSpeaksUTF8(t *testing.T) {
	for _, c := range []struct {
		all, lang string
		want      bool
	}{{"", "", true}, {"", "de_DE.UTF-8", true}, {"C", "de_DE.UTF-8", false}, {"C.utf8", "C", true}, {"", "POSIX", false}} {
		t.Setenv("LC_ALL", c.all)
		t.Setenv("LC_CTYPE", "")
		t.Setenv("LANG", c.lang)
		if got := speaksUTF8(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A server that knows no recorder, or has switched it off, is one clear line.
func TestTraceWithoutRecorder(t *testing.T) {
	for name, c := range map[string]struct {
		status *apierrors.StatusError
		want   string
	}{
		"another distribution": {apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{}, "", "", 0, false), "this server has no recorder: "},
		"switched off":         {apierrors.NewServiceUnavailable("the recorder is off: start the server without --trace-memory=0"), "the recorder is off: "},
		"no right":             {apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no")), "forbidden: no"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(c.status.ErrStatus.Code))
			c.status.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			_ = json.NewEncoder(w).Encode(c.status.ErrStatus)
		}))
		file := filepath.Join(t.TempDir(), "kubeconfig")
		text := "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: x}}]\nclusters: [{name: x, cluster: {server: '" + server.URL + "'}}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, mode := range []string{"--stats", "--slowest", "--serve"} {
			err := App(nil, io.Discard, io.Discard).Run([]string{"kubelith", "trace", mode, "--kubeconfig", file})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %s: %v, want %q", name, mode, err, c.want)
			}
		}
		server.Close()
	}
}
