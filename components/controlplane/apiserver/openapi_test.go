package apiserver

import (
	"encoding/json"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"k8s.io/kube-openapi/pkg/handler3"
)

// TestDocuments: what clients request is there as soon as the apiserver is, in both versions.
func TestDocuments(t *testing.T) {
	cs := admin(t)
	v2, err := cs.Discovery().OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(v2.GetDefinitions().GetAdditionalProperties(), func(d *openapi_v2.NamedSchema) bool {
		return d.GetName() == "io.k8s.api.apps.v1.Deployment"
	}) {
		t.Error("version 2 does not know a Deployment")
	}
	groups, err := cs.Discovery().OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1", "apis/apiregistration.k8s.io/v1"} {
		if groups[name] == nil {
			t.Errorf("version 3 has no %s, but %v", name, slices.Sorted(maps.Keys(groups)))
			continue
		}
		if schema, err := groups[name].Schema("application/json"); err != nil || !strings.Contains(string(schema), "x-kubernetes-group-version-kind") {
			t.Errorf("%s: %d bytes, %v", name, len(schema), err)
		}
	}
	// The aggregator takes over the hashes, by which clients keep documents, within a second or two.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		groups, err := cs.Discovery().OpenAPIV3().Paths()
		if err == nil && groups["apis/apps/v1"] != nil && strings.Contains(groups["apis/apps/v1"].ServerRelativeURL(), "?hash=") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no hash of apis/apps/v1: %v", err)
		}
	}
}

// TestIndex: the index of the start names the same documents as the real one.
func TestIndex(t *testing.T) {
	serve(t)
	index := func(prepared bool) []string {
		d := &documents{container: shared.documents.container, v3: shared.documents.v3}
		d.prepared.Store(prepared)
		answer := httptest.NewRecorder()
		d.index(answer, httptest.NewRequest("GET", "/openapi/v3", nil))
		var all handler3.OpenAPIV3Discovery
		if err := json.Unmarshal(answer.Body.Bytes(), &all); err != nil {
			t.Fatalf("%v: %s", err, answer.Body)
		}
		return slices.Sorted(maps.Keys(all.Paths))
	}
	start, later := index(false), index(true)
	if len(later) < 20 || !slices.Equal(start, later) {
		t.Errorf("at the start %v, later %v", start, later)
	}
}
