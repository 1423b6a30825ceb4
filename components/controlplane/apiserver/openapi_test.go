package apiserver

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
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

// TestIndex: the index before a client requests a document names the same ones as the real one, which has their hashes.
func TestIndex(t *testing.T) {
	serve(t)
	get := func(h http.Handler, path string) []byte {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
		if answer.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, answer.Code, answer.Body)
		}
		return answer.Body.Bytes()
	}
	names := func(index []byte, hashes bool) []string {
		var all handler3.OpenAPIV3Discovery
		if err := json.Unmarshal(index, &all); err != nil {
			t.Fatalf("%v: %s", err, index)
		}
		for name, d := range all.Paths {
			if strings.Contains(d.ServerRelativeURL, "?hash=") != hashes {
				t.Errorf("%s is at %s", name, d.ServerRelativeURL)
			}
		}
		return slices.Sorted(maps.Keys(all.Paths))
	}
	fresh, paths := &documents{container: shared.core.Handler.GoRestfulContainer}, shared.core.Handler.NonGoRestfulMux
	before := names(get(http.HandlerFunc(fresh.index), "/openapi/v3"), false)
	get(paths, "/openapi/v3/apis/apps/v1")
	after := names(get(paths, "/openapi/v3"), true)
	if len(after) < 20 || !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

// TestFewDefinitions: the extensions' and the aggregator's own definitions are those of the whole API.
func TestFewDefinitions(t *testing.T) {
	ref := func(name string) spec.Ref { return spec.MustCreateRef("#/definitions/" + name) }
	all := generatedopenapi.GetOpenAPIDefinitions(ref)
	for server, own := range map[string]common.GetOpenAPIDefinitions{
		"extensions": apiextensionsopenapi.GetOpenAPIDefinitions, "aggregator": aggregatoropenapi.GetOpenAPIDefinitions,
	} {
		for name, d := range own(ref) {
			if !reflect.DeepEqual(d, all[name]) {
				t.Errorf("%s: %s differs from the API's", server, name)
			}
		}
	}
}
