package kubelith

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

func TestTakeTrace(t *testing.T) {
	for line, want := range map[string]string{
		"--trace create -f x":           "create -f x true",
		"run a --image b --trace":       "run a --image b true",
		"get pods":                      "get pods false",
		"exec a -- strace --trace file": "exec a -- strace --trace file false",
		"run a --trace -- sh --trace":   "run a -- sh --trace true",
	} {
		rest, traced := takeTrace(strings.Fields(line))
		if got := fmt.Sprint(strings.Join(rest, " "), " ", traced); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

func TestWritten(t *testing.T) {
	for line, want := range map[string]string{
		"POST /apis/apps/v1/namespaces/shop/deployments":                     "deployments.apps shop ",
		"PATCH /apis/apps/v1/namespaces/shop/deployments/web/scale":          "deployments.apps shop web",
		"PATCH /apis/apps/v1/namespaces/shop/deployments/web?fieldManager=x": "deployments.apps shop web",
		"DELETE /api/v1/namespaces/shop/pods/web":                            "pods shop web",
		"POST /api/v1/namespaces/shop/pods/web/eviction":                     "pods shop web",
		"DELETE /api/v1/namespaces/shop":                                     "namespaces  shop",
		"PUT /apis/example.org/v1/namespaces/shop/certificates/tls":          "certificates.example.org shop tls",
		"PATCH /api/v1/nodes/n1":                                             "nodes  n1",
		"GET /api/v1/namespaces/shop/pods/web":                               "",
		"POST /api/v1/namespaces/shop/pods/web/exec?command=sh":              "",
		"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews":        "",
		"PATCH /apis/apps/v1/namespaces/shop/deployments/web?dryRun=All":     "",
		"POST /api/v1/namespaces/shop/serviceaccounts/default/token":         "",
		"DELETE /api/v1/namespaces/shop/pods":                                "",
		"POST /version":                                                      "",
	} {
		method, url, _ := strings.Cut(line, " ")
		ref, ok := written(httptest.NewRequest(method, url, nil))
		got := ""
		if ok {
			got = strings.Join([]string{ref.Resource, ref.Namespace, ref.Name}, " ")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

type answers func(*http.Request) *http.Response

func (f answers) RoundTrip(req *http.Request) (*http.Response, error) { return f(req), nil }

// The name of a new object is in the answer, which stays whole for kubectl.
func TestWritesTakeNamesFromAnswers(t *testing.T) {
	const body = `{"kind":"Pod","metadata":{"name":"web-x7"}}`
	w := &writes{}
	tripper := &writesTripper{writes: w, next: answers(func(req *http.Request) *http.Response {
		status := 201
		if strings.HasSuffix(req.URL.Path, "secrets") {
			status = 403
		}
		return &http.Response{StatusCode: status, Header: http.Header{"Date": {"Sun, 22 Nov 2026 16:24:27 GMT"}}, Body: io.NopCloser(strings.NewReader(body))}
	})}
	for _, resource := range []string{"pods", "secrets", "pods"} {
		resp, err := tripper.RoundTrip(httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/shop/"+resource, nil))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != body || err != nil {
			t.Errorf("the answer became %q, %v", got, err)
		}
	}
	at := time.Date(2026, 11, 22, 16, 24, 27, 0, time.UTC)
	if len(w.all) != 1 || w.all[0].ref != (record.Ref{Resource: "pods", Namespace: "shop", Name: "web-x7"}) || w.all[0].since.After(at) {
		t.Errorf("got %+v", w.all)
	}
}

// Some of kubectl's commands speak protobuf.
func TestNameOf(t *testing.T) {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x7"}}
	proto, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), pod)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"protobuf": string(proto), "JSON": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-x7"}}`,
		"custom": `{"apiVersion":"example.org/v1","kind":"Shop","metadata":{"name":"web-x7"}}`,
	} {
		if got := nameOf([]byte(content)); got != "web-x7" {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := nameOf([]byte("no object")); got != "" {
		t.Errorf("no object: %q", got)
	}
}

func TestCaughtKeepsTheExitCode(t *testing.T) {
	if got := caught(io.Discard, func() { cmdutil.CheckErr(cmdutil.ErrExit) }); got != 1 {
		t.Errorf("got %d", got)
	}
	if got := caught(io.Discard, func() {}); got != 0 {
		t.Errorf("got %d", got)
	}
}

// An object in the timeline of another one is not shown again; one that nothing was done with is named.
func TestFollowWrites(t *testing.T) {
	web, old := timelineOf(t, "deployment"), timelineOf(t, "deletion")
	web.Object.UID, old.Object.UID = "d0", "old"
	pod := *web
	pod.Object = record.Ref{UID: "p1", Resource: "pods", Namespace: "shop", Name: "web-5d4f8c9b7-4xk2p"}
	settings := &trace.Timeline{Object: record.Ref{UID: "s", Resource: "configmaps", Name: "settings"}, Settled: true, Outcome: "done",
		Begin: web.Begin, End: web.Begin.Add(5 * time.Millisecond), Spans: []trace.Span{{Object: record.Ref{UID: "s", Resource: "configmaps", Name: "settings"}}}}
	client := &fakeRecorder{timelines: slices.Concat([]*trace.Timeline{settings, web, web, &pod}, slices.Repeat([]*trace.Timeline{old}, 100))}
	var out bytes.Buffer
	err := followWrites(t.Context(), client, []write{
		{ref: settings.Object}, {ref: web.Object, since: web.Begin.Add(-time.Second)}, {ref: pod.Object},
	}, &follower{client: client, out: &out})
	if err != nil || strings.Count(out.String(), "Where the time went") != 1 || !strings.HasPrefix(out.String(), "configmap/settings: done, 5.0ms\n") {
		t.Errorf("%v: %s", err, &out)
	}
	out.Reset()
	err = followWrites(t.Context(), client, []write{{ref: old.Object, since: old.Begin.Add(time.Minute)}}, &follower{client: client, out: &out})
	if want := "deployment/web: unchanged\n"; err != nil || out.String() != want {
		t.Errorf("%v: %s", err, &out)
	}
}
