package manifests

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const deployment = `# line 1
apiVersion: apps/v1
kind: Deployment
metadata:
  name: hello
  labels: &labels
    app.kubernetes.io/name: hello
    app: hello
spec:
  replicas: 1
  selector:
    matchLabels: *labels
  template:
    spec:
      containers:
        - name: first
          ports:
            - containerPort: 80
            - containerPort: 81
              protocol: UDP
              hostport: 81
        - image: x
          name: "second, with a comma"
          args: [one,
            two]
      finalizers:
        - a
        - b
`

func parsed(t *testing.T, content string) document {
	t.Helper()
	all, wrong := parse([]byte(content))
	if wrong != nil || len(all) != 1 {
		t.Fatalf("%d documents: %+v", len(all), wrong)
	}
	return all[0]
}

func TestLineOf(t *testing.T) {
	d := parsed(t, deployment)
	for path, want := range map[string]int{
		"":                     2,
		"kind":                 3,
		".metadata.name":       5,
		".metadata.labels.app": 8,
		".metadata.labels.app.kubernetes.io/name": 7,
		"metadata.labels[app.kubernetes.io/name]": 7,
		"metadata.annotations":                    4, // not there: what is around it
		".spec.replicas":                          10,
		".spec.selector.matchLabels.app":          8, // where the alias leads
		"spec.template.spec.containers[0]":        16,
		"spec.template.spec.containers[1].image":  22,
		"spec.template.spec.containers[2].image":  15,
		`.spec.template.spec.containers[name="first"].ports[containerPort=81,protocol="UDP"].hostport`: 21,
		// The protocol is a default: the file does not have it.
		`.spec.template.spec.containers[name="first"].ports[containerPort=80,protocol="TCP"]`: 18,
		`.spec.template.spec.containers[name="second, with a comma"].image`:                   22,
		`.spec.template.spec.containers[name="third"].image`:                                  15,
		`.spec.template.spec.finalizers[="b"]`:                                                28,
		"spec.template.spec.containers[1].args[1]":                                            25,
		"spec.replicas.more":             10,
		"spec.template.spec.containers[": 15,
	} {
		if got := lineOf(d.node, path); got != want {
			t.Errorf("%s: line %d, want %d", path, got, want)
		}
	}
}

func TestExplain(t *testing.T) {
	d := parsed(t, deployment)
	gk := schema.GroupKind{Group: "apps", Kind: "Deployment"}
	typed := "failed to create typed patch object (default/hello; apps/v1, Kind=Deployment): "
	status := func(text string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: text}}
	}
	for name, c := range map[string]struct {
		err  error
		want []string
	}{
		"a field that the schema does not have": {status(typed + `.spec.template.spec.containers[name="first"].ports[containerPort=81,protocol="UDP"].hostport: field not declared in schema`),
			[]string{`f:21: Deployment hello: unknown field spec.template.spec.containers[name="first"].ports[containerPort=81,protocol="UDP"].hostport`}},
		"several": {status(typed + "errors:\n  .spec.replicas: expected numeric (int or float), got string\n  .spec.replica: field not declared in schema"),
			[]string{"f:10: Deployment hello: spec.replicas: expected numeric (int or float), got string", "f:9: Deployment hello: unknown field spec.replica"}},
		"field validation": {apierrors.NewBadRequest(`strict decoding error: unknown field "spec.replicas", unknown field "metadata.name"`),
			[]string{"f:10: Deployment hello: unknown field spec.replicas", "f:5: Deployment hello: unknown field metadata.name"}},
		"invalid": {apierrors.NewInvalid(gk, "hello", field.ErrorList{
			field.Required(field.NewPath("spec", "template", "spec", "containers").Index(1).Child("image"), "give one"),
			field.Invalid(field.NewPath("spec", "replicas"), -1, "must be positive"),
		}), []string{"f:22: Deployment hello: spec.template.spec.containers[1].image: Required value: give one", "f:10: Deployment hello: spec.replicas: Invalid value: -1: must be positive"}},
		"no such kind": {&meta.NoKindMatchError{GroupKind: gk, SearchedVersions: []string{"v1"}},
			[]string{"f:3: Deployment hello: the API has no kind Deployment in apps/v1: apply its CustomResourceDefinition, or correct apiVersion and kind"}},
		"anything else": {errors.New("admission webhook \"a\" denied:\n because"), []string{"f:2: Deployment hello: admission webhook \"a\" denied: because"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range explain(d, c.err) {
				got = append(got, f.in("f"))
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
			}
		})
	}
}
