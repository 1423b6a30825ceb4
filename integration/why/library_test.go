package why

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/why"
	"kubelith.io/kubelith/why/placement"
)

// asker asks the question of a case once.
type asker func() (answer, error)

// libraryFor asks the library that `kubelith why` consists of, in this process, with the same readers: the program
// costs 0.3 s of CPU to start. It returns nil unless the question is about one object as TYPE/NAME.
func libraryFor(t testing.TB, s *harness.Server, types meta.RESTMapper, ns string, args []string) asker {
	t.Helper()
	kind, name, ok := strings.Cut(args[0], "/")
	if !ok {
		return nil
	}
	recorder, err := api.NewClient(s.RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	options := why.Options{Client: s.Client(t), Dynamic: s.Dynamic(t), Placement: placement.Verdicts, Record: recorder}
	return func() (a answer, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(30*time.Second))
		defer cancel()
		target, err := targetOf(types, kind, name, ns)
		if err != nil {
			return a, err
		}
		explained, err := why.Explain(ctx, why.NewReader(options), target)
		if err != nil {
			return a, err
		}
		text, err := json.Marshal(explained)
		if err != nil {
			return a, err
		}
		err = json.Unmarshal(text, &a)
		return a, err
	}
}

// targetOf is the object that TYPE/NAME means.
func targetOf(types meta.RESTMapper, kind, name, ns string) (target why.Target, err error) {
	gvk, err := types.KindFor(schema.ParseGroupResource(kind).WithVersion(""))
	if err != nil {
		return target, err
	}
	mapping, err := types.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return target, err
	}
	target = why.Target{Kind: gvk, Resource: mapping.Resource, Name: name}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		target.Namespace = ns
	}
	return target, nil
}
