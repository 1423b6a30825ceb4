package initializers

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestBodiesWithout: a body that has no such field is not touched, not even its formatting.
func TestBodiesWithout(t *testing.T) {
	for _, tc := range []struct{ kind, body string }{
		{"application/json", `{"metadata": {"name":"a"},  "data":{"initializers":"1"}}`},
		{"application/json", `{"initializers": `},
		{"application/json", `[{"metadata":{"initializers":1}}]`},
		{"application/yaml", "initializers: [\n"},
		{string(types.JSONPatchType), `[{"op":"add","path":"/metadata/initializers-of-mine","value":1}]`},
		{string(types.MergePatchType), `{"spec":{"initializers":null}}`},
		{"application/vnd.kubernetes.protobuf", `{"metadata":{"initializers":{"pending":[]}}}`},
		{"", `{"kind":"initializers"}`},
	} {
		got, err := incoming([]byte(tc.body), tc.kind)
		if err != nil || string(got) != tc.body {
			t.Errorf("%s: %s became %s, %v", tc.kind, tc.body, got, err)
		}
	}
}

// TestBodiesThereAndBack: what a client sends in metadata.initializers is what it gets.
func TestBodiesThereAndBack(t *testing.T) {
	for name, body := range map[string]string{
		"an object": `{"metadata":{"initializers":{"pending":[{"name":"a.example.com"}]},"name":"a"},"n":12345678901234567890}`,
		"others":    `{"metadata":{"annotations":{"a":"<b>"},"initializers":{"pending":null,"result":{"metadata":{},"status":"Failure"}}}}`,
	} {
		sent, err := incoming([]byte(body), "application/json; charset=utf-8")
		if err != nil || strings.Contains(string(sent), `"initializers":`) {
			t.Errorf("%s: %s, %v", name, sent, err)
		}
		if got := strings.TrimSpace(string(outgoing(sent))); got != body {
			t.Errorf("%s: %s came back as %s", name, body, got)
		}
	}
	inside := `{"metadata":{"annotations":{"` + Annotation + `":"{\"pending\":[{\"name\":\"a.example.com\"}]}"}}}`
	for _, document := range []string{`{"items":[` + inside + `]}`, `{"rows":[{"cells":[],"object":` + inside + `}]}`, `{"type":"ADDED","object":` + inside + `}`} {
		if got := string(outgoing([]byte(document))); strings.Contains(got, "annotations") || !strings.Contains(got, `"metadata":{"initializers":{"pending":[{"name":"a.example.com"}]}}`) {
			t.Errorf("%s became %s", document, got)
		}
	}
}

func TestBadBodies(t *testing.T) {
	for _, tc := range []struct{ kind, body, want string }{
		{"application/json", `{"metadata":{"initializers":{"pending":[],"more":1}}}`, `unknown field "more"`},
		{"application/json", `{"metadata":{"initializers":7}}`, "metadata.initializers"},
		{"application/json", `{"metadata":{"annotations":7,"initializers":{}}}`, "annotations"},
		{string(types.JSONPatchType), `[{"op":"move","from":"/metadata/initializers/pending","path":"/data"}]`, "moved or copied"},
	} {
		if _, err := incoming([]byte(tc.body), tc.kind); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.body, err, tc.want)
		}
	}
}

func FuzzBodies(f *testing.F) {
	for _, kind := range []string{"application/json", "application/yaml", string(types.JSONPatchType), string(types.StrategicMergePatchType), string(types.MergePatchType)} {
		f.Add(kind, `{"metadata":{"initializers":{"pending":[{"name":"a.example.com"}]}}}`)
		f.Add(kind, `[{"op":"remove","path":"/metadata/initializers/pending/0"}]`)
		f.Add(kind, "metadata: {initializers: null}")
	}
	f.Fuzz(func(t *testing.T, kind, body string) {
		out, err := incoming([]byte(body), kind)
		if err == nil && json.Valid([]byte(body)) && !json.Valid(out) {
			t.Errorf("%s: %q became %q", kind, body, out)
		}
		outgoing([]byte(body))
	})
}

func TestChanges(t *testing.T) {
	old := pending("a.example.com", "b.example.com")
	for name, tc := range map[string]struct {
		change change
		want   string
	}{
		"null":                 {change{types.MergePatchType, []byte(`null`)}, "null"},
		"merge":                {change{types.MergePatchType, []byte(`{"pending":[{"name":"b.example.com"}]}`)}, `{"pending":[{"name":"b.example.com"}]}`},
		"merge a result":       {change{types.MergePatchType, []byte(`{"result":{"status":"Failure"}}`)}, `{"pending":[{"name":"a.example.com"},{"name":"b.example.com"}],"result":{"metadata":{},"status":"Failure"}}`},
		"strategic":            {change{types.StrategicMergePatchType, []byte(`{"$setElementOrder/pending":[{"name":"b.example.com"}],"pending":[{"$patch":"delete","name":"a.example.com"}]}`)}, `{"pending":[{"name":"b.example.com"}]}`},
		"strategic, replacing": {change{types.StrategicMergePatchType, []byte(`{"pending":[{"$patch":"replace"}]}`)}, `{"pending":[]}`},
		"operations":           {change{types.JSONPatchType, []byte(`[{"op":"remove","path":"/initializers/pending/0"}]`)}, `{"pending":[{"name":"b.example.com"}]}`},
		"remove all":           {change{types.JSONPatchType, []byte(`[{"op":"remove","path":"/initializers"}]`)}, "null"},
	} {
		got, err := tc.change.apply(old)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b, _ := json.Marshal(got); string(b) != tc.want {
			t.Errorf("%s: %s, want %s", name, b, tc.want)
		}
	}
	for _, bad := range []change{{types.JSONPatchType, []byte(`[{"op":"test","path":"/initializers/pending/0/name","value":"b"}]`)}, {"text/plain", []byte(`{}`)}, {types.MergePatchType, []byte(`{"x":1}`)}} {
		if s, err := bad.apply(old); err == nil {
			t.Errorf("%s %s: %v", bad.Type, bad.Patch, s)
		}
	}
}
