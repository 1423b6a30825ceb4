package manifests

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
)

// served is what the API says about its groups.
type served struct {
	discovery.DiscoveryInterfaceWithContext
	err error
}

func (s served) ServerGroupsAndResourcesWithContext(context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return nil, nil, s.err
}

// unmapped is a mapper that knows no kind.
type unmapped struct {
	meta.ResettableRESTMapperWithContext
}

func (unmapped) RESTMappingWithContext(_ context.Context, gk schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	return nil, &meta.NoKindMatchError{GroupKind: gk}
}

// The objects of a kind that is gone are gone. Those of an API whose server is down are not.
func TestMembersOfMissingKinds(t *testing.T) {
	down := func(group string) error {
		return &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: group, Version: "v3"}: errors.New("stale")}}
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"gone":                    {nil, ""},
		"gone, another API down":  {down("metrics.example.org"), ""},
		"its API is down":         {down("net.example.org"), "the API net.example.org/v3 does not answer: stale"},
		"no answer about any API": {errors.New("timeout"), "timeout"},
	} {
		a := &api{mapper: unmapped{}, discovery: served{err: c.err}}
		found, err := a.members(t.Context(), parent{kinds: sets.New(schema.GroupKind{Group: "net.example.org", Kind: "Policy"})})
		if len(found) > 0 || (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %q", name, found, err, c.want)
		}
	}
}
