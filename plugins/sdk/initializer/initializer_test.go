package initializer

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// podWith is a hidden pod, with a field that no type of client-go has.
func podWith(initializers string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	text := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","resourceVersion":"7"` + initializers + `},"spec":{"future":1,"containers":[{"name":"a","image":"a"}]}}`
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		panic(err)
	}
	return o
}

const both = `,"initializers":{"pending":[{"name":"first.example.com"},{"name":"second.example.com"}]}`

func TestTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		state string
		want  []string
	}{
		"two":            {both, []string{"first.example.com"}},
		"the last":       {`,"initializers":{"pending":[{"name":"second.example.com"}]}`, []string{"second.example.com"}},
		"none":           {"", nil},
		"an empty list":  {`,"initializers":{"pending":[]}`, nil},
		"it has failed":  {`,"initializers":{"pending":[{"name":"first.example.com"}],"result":{"status":"Failure"}}`, nil},
		"somebody else":  {`,"initializers":{"pending":[{"name":"third.example.com"}]}`, nil},
		"not even names": {`,"initializers":{"pending":["first.example.com"]}`, nil},
	} {
		var got []string
		for _, i := range []string{"first.example.com", "second.example.com"} {
			if (Initializer{Name: i}).next(podWith(tc.state)) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: it is the turn of %q, want %q", name, got, tc.want)
		}
	}
}

// patchOf returns the patch that an initializer sends for a pod; nil: none.
func patchOf(t *testing.T, pod *unstructured.Unstructured, name string, initialize func(context.Context, *corev1.Pod) error) (map[string]any, error) {
	t.Helper()
	resource := corev1.SchemeGroupVersion.WithResource("pods")
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: "PodList"}, pod)
	var patch map[string]any
	client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.PatchAction)
		if p.GetPatchType() != types.MergePatchType {
			t.Errorf("the patch is a %s", p.GetPatchType())
		}
		return true, pod, json.Unmarshal(p.GetPatch(), &patch)
	})
	err := For(name, resource, initialize).act(t.Context(), client.Resource(resource).Namespace("n"), "p")
	return patch, err
}

func TestPatches(t *testing.T) {
	add := func(_ context.Context, pod *corev1.Pod) error {
		pod.Labels = map[string]string{"a": "b"}
		return nil
	}
	for name, tc := range map[string]struct {
		state, initializer string
		initialize         func(context.Context, *corev1.Pod) error
		want               string
	}{
		"the first":     {both, "first.example.com", add, `{"metadata":{"initializers":{"pending":[{"name":"second.example.com"}]},"labels":{"a":"b"},"resourceVersion":"7"}}`},
		"the last":      {`,"initializers":{"pending":[{"name":"second.example.com"}]}`, "second.example.com", add, `{"metadata":{"initializers":null,"labels":{"a":"b"},"resourceVersion":"7"}}`},
		"not its turn":  {both, "second.example.com", add, `null`},
		"nothing to do": {both, "first.example.com", func(context.Context, *corev1.Pod) error { return nil }, `{"metadata":{"initializers":{"pending":[{"name":"second.example.com"}]},"resourceVersion":"7"}}`},
		"it is refused": {both, "first.example.com", func(context.Context, *corev1.Pod) error { return Refuse("%d is too many", 2) }, `{"metadata":{"initializers":{"result":{"code":403,"message":"first.example.com: 2 is too many","metadata":{},"reason":"Forbidden","status":"Failure"}},"resourceVersion":"7"}}`},
	} {
		patch, err := patchOf(t, podWith(tc.state), tc.initializer, tc.initialize)
		if got, _ := json.Marshal(patch); err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tc.want)
		}
	}
	if patch, err := patchOf(t, podWith(both), "first.example.com", func(context.Context, *corev1.Pod) error { return errors.New("not now") }); patch != nil || err == nil || !strings.Contains(err.Error(), "not now") {
		t.Errorf("an error that is tried again: %v, %v", patch, err)
	}
}

// TestForgets: the cache keeps no content of objects that are visible.
func TestForgets(t *testing.T) {
	i := Initializer{Name: "first.example.com"}
	kept, err := i.forget(podWith(""))
	if err != nil {
		t.Fatal(err)
	}
	if u := kept.(*unstructured.Unstructured); u.Object["spec"] != nil || u.GetName() != "p" || u.GetResourceVersion() != "7" {
		t.Errorf("%v", u)
	}
	if whole, _ := i.forget(podWith(both)); whole.(*unstructured.Unstructured).Object["spec"] == nil {
		t.Error("what is to be initialized is forgotten")
	}
}
