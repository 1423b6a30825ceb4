package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"kubelith.io/kubelith/plugins"
	admissionpb "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// admissionChecks returns the checks of admission plugins.
func admissionChecks() []Check {
	return []Check{
		{"has hooks, each with its own name", hasHooks},
		{"reviews every operation of its rules, also as dry run", reviewsItsRules},
		{"the encodings that it reads give the same answer", encodingsAgree},
		{"an object of 1 MiB", bigObject},
		{"garbage is an error, not a crash", garbage},
		{"32 reviews at once", reviewsAtOnce},
	}
}

// hook has what both kinds of webhooks have in common.
type hook struct {
	name     string
	rules    []admissionregistrationv1.RuleWithOperations
	mutating bool
}

func (t *Target) hooks() ([]hook, error) {
	var hooks []hook
	d := t.Description().GetAdmission()
	for _, text := range d.Mutating {
		var w admissionregistrationv1.MutatingWebhook
		if err := json.Unmarshal(text, &w); err != nil {
			return nil, fmt.Errorf("a mutating hook is not a MutatingWebhook in JSON: %w", err)
		}
		hooks = append(hooks, hook{name: w.Name, rules: w.Rules, mutating: true})
	}
	for _, text := range d.Validating {
		var w admissionregistrationv1.ValidatingWebhook
		if err := json.Unmarshal(text, &w); err != nil {
			return nil, fmt.Errorf("a validating hook is not a ValidatingWebhook in JSON: %w", err)
		}
		hooks = append(hooks, hook{name: w.Name, rules: w.Rules})
	}
	return hooks, nil
}

func hasHooks(_ context.Context, t *Target) (string, error) {
	hooks, err := t.hooks()
	if err != nil {
		return "", err
	}
	if len(hooks) == 0 {
		return "", errors.New("it has none, so nothing would be reviewed")
	}
	var names []string
	for _, h := range hooks {
		if len(h.rules) == 0 {
			return "", fmt.Errorf("hook %s has no rules, so it would never be called", h.name)
		}
		if h.name == "" || slices.Contains(names, h.name) {
			return "", fmt.Errorf("two hooks have the name %q", h.name)
		}
		names = append(names, h.name)
	}
	return strings.Join(names, ", "), nil
}

// reviewsItsRules sends a minimal object of each resource that the rules name.
func reviewsItsRules(ctx context.Context, t *Target) (string, error) {
	hooks, err := t.hooks()
	if err != nil {
		return "", err
	}
	asked, unknown := 0, map[string]bool{}
	for _, h := range hooks {
		for _, rule := range h.rules {
			for _, resource := range resources(rule) {
				object := exampleOf(resource)
				if object == nil {
					unknown[resource.Resource] = true
					continue
				}
				for _, operation := range operations(rule, resource) {
					for _, dry := range []bool{false, true} {
						request := newRequest(object, resource, operation)
						request.DryRun = &dry
						if _, err := t.review(ctx, h, request, pluginv1.Encoding_ENCODING_JSON); err != nil {
							return "", fmt.Errorf("hook %s, %s of %s: %w", h.name, operation, resource.Resource, err)
						}
						asked++
					}
				}
			}
		}
	}
	note := fmt.Sprintf("%d requests", asked)
	if len(unknown) > 0 {
		note += fmt.Sprintf("; not checked, as they are not built into Kubernetes: %s", strings.Join(slices.Sorted(maps.Keys(unknown)), ", "))
	}
	return note, nil
}

// encodingsAgree compares the answers to the same request.
func encodingsAgree(ctx context.Context, t *Target) (string, error) {
	if !slices.Contains(t.Description().GetAdmission().Encodings, pluginv1.Encoding_ENCODING_PROTOBUF) {
		return "it reads JSON only", nil
	}
	h, request, err := t.someRequest()
	if err != nil || request == nil {
		return "nothing to ask", err
	}
	inJSON, err := t.review(ctx, h, request, pluginv1.Encoding_ENCODING_JSON)
	if err != nil {
		return "", err
	}
	inProtobuf, err := t.review(ctx, h, request, pluginv1.Encoding_ENCODING_PROTOBUF)
	if err != nil {
		return "", fmt.Errorf("in protobuf: %w", err)
	}
	if inJSON.Allowed != inProtobuf.Allowed || !bytes.Equal(inJSON.Patch, inProtobuf.Patch) {
		return "", fmt.Errorf("JSON: allowed %v, patch %s; protobuf: allowed %v, patch %s", inJSON.Allowed, inJSON.Patch, inProtobuf.Allowed, inProtobuf.Patch)
	}
	return "", nil
}

// bigObject sends an object close to etcd's maximum size.
func bigObject(ctx context.Context, t *Target) (string, error) {
	h, request, err := t.someRequest()
	if err != nil || request == nil {
		return "nothing to ask", err
	}
	var object map[string]any
	raw := &request.Object
	if len(raw.Raw) == 0 {
		raw = &request.OldObject
	}
	if err := json.Unmarshal(raw.Raw, &object); err != nil {
		return "", err
	}
	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		return "the object has no metadata", nil
	}
	metadata["annotations"] = map[string]any{"check/filler": strings.Repeat("x", 1<<20)}
	if raw.Raw, err = json.Marshal(object); err != nil {
		return "", err
	}
	_, err = t.review(ctx, h, request, pluginv1.Encoding_ENCODING_JSON)
	return "", err
}

func garbage(ctx context.Context, t *Target) (string, error) {
	hooks, err := t.hooks()
	if err != nil {
		return "", err
	}
	for _, text := range []string{"", "{", "[]", "null", `{"kind":"AdmissionReview"}`, "\x00\xff\xfe"} {
		err := t.plugin.Call(ctx, "Review", func(ctx context.Context, i plugins.Instance) error {
			_, err := admissionpb.NewAdmissionClient(i.Conn).Review(ctx, &admissionpb.ReviewRequest{
				Review: []byte(text), Encoding: pluginv1.Encoding_ENCODING_JSON, Hook: hooks[0].name})
			return err
		})
		if err == nil {
			return "", fmt.Errorf("it accepted %q as a review", text)
		}
	}
	_, err = ignoresUnknownFields(ctx, t) // it still answers
	return "", err
}

func reviewsAtOnce(ctx context.Context, t *Target) (string, error) {
	h, request, err := t.someRequest()
	if err != nil || request == nil {
		return "nothing to ask", err
	}
	return "", atOnce(32, func(i int) error {
		mine := request.DeepCopy()
		mine.UID = types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))
		_, err := t.review(ctx, h, mine, pluginv1.Encoding_ENCODING_JSON)
		return err
	})
}

// review calls a hook and checks that its answer is valid.
func (t *Target) review(
	ctx context.Context, h hook, request *admissionv1.AdmissionRequest, encoding pluginv1.Encoding,
) (*admissionv1.AdmissionResponse, error) {
	review := &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request:  request,
	}
	marshal := func() ([]byte, error) { return json.Marshal(review) }
	unmarshal := func(data []byte, into *admissionv1.AdmissionReview) error { return json.Unmarshal(data, into) }
	if encoding == pluginv1.Encoding_ENCODING_PROTOBUF {
		marshal, unmarshal = review.Marshal, func(data []byte, into *admissionv1.AdmissionReview) error { return into.Unmarshal(data) }
	}
	data, err := marshal()
	if err != nil {
		return nil, err
	}
	answer := &admissionv1.AdmissionReview{}
	err = t.plugin.Call(ctx, "Review", func(ctx context.Context, i plugins.Instance) error {
		response, err := admissionpb.NewAdmissionClient(i.Conn).Review(ctx, &admissionpb.ReviewRequest{Review: data, Encoding: encoding, Hook: h.name})
		if err != nil {
			return err
		}
		return unmarshal(response.Review, answer)
	})
	if err != nil {
		return nil, err
	}
	return answer.Response, validAnswer(h, request, answer)
}

// validAnswer returns why an apiserver would refuse an answer.
// Source: admission/plugin/webhook/request of k8s.io/apiserver
func validAnswer(h hook, request *admissionv1.AdmissionRequest, answer *admissionv1.AdmissionReview) error {
	response := answer.Response
	switch {
	case response == nil:
		return errors.New("the answer has no response")
	case response.UID != request.UID:
		return fmt.Errorf("the answer has uid %q, the request %q", response.UID, request.UID)
	case len(response.Patch) == 0:
		return nil
	case !h.mutating:
		return errors.New("a validating hook must not patch")
	case response.PatchType == nil || *response.PatchType != admissionv1.PatchTypeJSONPatch:
		return errors.New("a patch without patchType JSONPatch")
	case len(request.Object.Raw) == 0:
		return errors.New("a patch without an object")
	}
	patch, err := jsonpatch.DecodePatch(response.Patch)
	if err != nil {
		return fmt.Errorf("the patch is not a JSON patch: %w", err)
	}
	if _, err := patch.Apply(request.Object.Raw); err != nil {
		return fmt.Errorf("the patch does not apply to the object: %w", err)
	}
	return nil
}

// someRequest returns the first request that the rules cover and exampleOf has an object for; nil if there is none.
func (t *Target) someRequest() (hook, *admissionv1.AdmissionRequest, error) {
	hooks, err := t.hooks()
	if err != nil {
		return hook{}, nil, err
	}
	for _, h := range hooks {
		for _, rule := range h.rules {
			for _, resource := range resources(rule) {
				if object := exampleOf(resource); object != nil {
					return h, newRequest(object, resource, operations(rule, resource)[0]), nil
				}
			}
		}
	}
	return hook{}, nil, nil
}

// resource is a resource of a rule, without wildcards.
type resource struct {
	schema.GroupVersionResource
	subresource string
}

// resources returns the resources of a rule, with one match for each wildcard.
func resources(rule admissionregistrationv1.RuleWithOperations) []resource {
	var all []resource
	for _, group := range rule.APIGroups {
		for _, version := range rule.APIVersions {
			for _, name := range rule.Resources {
				name, sub, _ := strings.Cut(name, "/")
				r := resource{schema.GroupVersionResource{Group: group, Version: version, Resource: name}, sub}
				if group == "*" {
					r.Group = ""
				}
				if version == "*" {
					r.Version = "v1"
				}
				if name == "*" {
					r.Resource = map[bool]string{true: "pods", false: "deployments"}[r.Group == ""]
				}
				if sub == "*" {
					r.subresource = ""
				}
				all = append(all, r)
			}
		}
	}
	return all
}

// operations returns the operations of a rule on a resource, without wildcards.
func operations(rule admissionregistrationv1.RuleWithOperations, r resource) []admissionv1.Operation {
	if connects(r) {
		return []admissionv1.Operation{admissionv1.Connect}
	}
	var all []admissionv1.Operation
	for _, o := range rule.Operations {
		switch o {
		case admissionregistrationv1.OperationAll:
			return []admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete}
		case admissionregistrationv1.Connect:
		default:
			all = append(all, admissionv1.Operation(o))
		}
	}
	if len(all) == 0 { // CONNECT to an unknown stream
		all = append(all, admissionv1.Connect)
	}
	return all
}

// connects reports whether a resource is a stream, whose object is the options of the request.
func connects(r resource) bool {
	return slices.Contains([]string{"exec", "attach", "portforward", "proxy"}, r.subresource)
}

// exampleOf returns a minimal object of a built-in resource; nil for others.
func exampleOf(r resource) runtime.Object {
	switch {
	case r.Resource == "pods" && r.subresource == "exec":
		return typed(&corev1.PodExecOptions{Container: "c", Command: []string{"sh"}}, "PodExecOptions")
	case r.Resource == "pods" && r.subresource == "attach":
		return typed(&corev1.PodAttachOptions{Container: "c"}, "PodAttachOptions")
	case r.Resource == "pods" && r.subresource == "portforward":
		return typed(&corev1.PodPortForwardOptions{Ports: []int32{80}}, "PodPortForwardOptions")
	case r.Resource == "pods" && r.subresource == "proxy":
		return typed(&corev1.PodProxyOptions{}, "PodProxyOptions")
	case r.Resource == "pods":
		return typed(&corev1.Pod{ObjectMeta: exampleMeta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, "Pod")
	}
	for kind := range scheme.Scheme.KnownTypes(r.GroupVersion()) {
		if plural, _ := meta.UnsafeGuessKindToResource(r.GroupVersion().WithKind(kind)); plural != r.GroupVersionResource {
			continue
		}
		object, err := scheme.Scheme.New(r.GroupVersion().WithKind(kind))
		if err != nil {
			return nil
		}
		object.GetObjectKind().SetGroupVersionKind(r.GroupVersion().WithKind(kind))
		if accessor, err := meta.Accessor(object); err == nil {
			accessor.SetName(exampleMeta.Name)
			accessor.SetNamespace(exampleMeta.Namespace)
		}
		return object
	}
	return nil
}

var exampleMeta = metav1.ObjectMeta{Name: "check", Namespace: "default", Labels: map[string]string{"app": "check"}}

func typed(object runtime.Object, kind string) runtime.Object {
	object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return object
}

// newRequest returns the request that an apiserver would send for an operation on the object.
func newRequest(object runtime.Object, r resource, operation admissionv1.Operation) *admissionv1.AdmissionRequest {
	raw, _ := json.Marshal(object) // cannot fail for Kubernetes types
	kind := object.GetObjectKind().GroupVersionKind()
	request := &admissionv1.AdmissionRequest{
		UID:  "11111111-2222-3333-4444-555555555555",
		Kind: metav1.GroupVersionKind(kind), Resource: metav1.GroupVersionResource(r.GroupVersionResource), SubResource: r.subresource,
		Name: exampleMeta.Name, Namespace: exampleMeta.Namespace, Operation: operation,
		Options: runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}`)},
	}
	request.UserInfo.Username = "kubelith-plugin-check"
	if operation != admissionv1.Delete {
		request.Object.Raw = raw
	}
	if operation == admissionv1.Update || operation == admissionv1.Delete {
		request.OldObject.Raw = raw
	}
	return request
}
