package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	admissionpb "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

func validating(name string, review sdk.Review) sdk.ValidatingHook {
	return sdk.ValidatingHook{Webhook: admissionregistrationv1.ValidatingWebhook{Name: name}, Review: review}
}

func TestDescribeAdmission(t *testing.T) {
	var settings struct {
		Label string `json:"label"`
	}
	dryRun := admissionregistrationv1.SideEffectClassNoneOnDryRun
	plugin := sdk.Admission{
		Version: "1.2", ProtobufObjects: true,
		Mutating:   []sdk.MutatingHook{{Webhook: admissionregistrationv1.MutatingWebhook{Name: "inject"}}},
		Validating: []sdk.ValidatingHook{{Webhook: admissionregistrationv1.ValidatingWebhook{Name: "check", SideEffects: &dryRun, AdmissionReviewVersions: []string{"v1", "v1beta1"}}}},
	}
	plugin.Configure = func(c sdk.Config) error {
		if err := c.Decode(&settings); err != nil {
			return err
		}
		plugin.Mutating[0].Webhook.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{settings.Label: "yes"}}
		return nil
	}
	conn := sdktest.Connect(t, plugin.Register)
	d, err := sdktest.Describe(t, conn, "x", `{"label":"inject"}`)
	if err != nil {
		t.Fatal(err)
	}
	a := d.GetAdmission()
	if d.GetVersion() != "1.2" || len(a.GetMutating()) != 1 || len(a.GetValidating()) != 1 || a.GetEncodings()[0] != pluginv1.Encoding_ENCODING_PROTOBUF_OBJECTS {
		t.Fatalf("%+v", d)
	}
	var mutating admissionregistrationv1.MutatingWebhook
	if err := json.Unmarshal(a.GetMutating()[0], &mutating); err != nil {
		t.Fatal(err)
	}
	if mutating.ObjectSelector.MatchLabels["inject"] != "yes" || *mutating.SideEffects != admissionregistrationv1.SideEffectClassNone || !slices.Equal(mutating.AdmissionReviewVersions, []string{"v1"}) {
		t.Errorf("%+v", mutating)
	}
	var check admissionregistrationv1.ValidatingWebhook
	if err := json.Unmarshal(a.GetValidating()[0], &check); err != nil {
		t.Fatal(err)
	}
	if *check.SideEffects != dryRun || len(check.AdmissionReviewVersions) != 2 {
		t.Errorf("what the author gave is not kept: %+v", check)
	}
	if _, err := sdktest.Describe(t, conn, "x", `{"lable":""}`); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown key of the configuration: %v", err)
	}
}

func TestReview(t *testing.T) {
	plugin := sdk.Admission{Validating: []sdk.ValidatingHook{
		validating("allow", func(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
			response := sdk.Allow()
			response.Warnings = []string{"by " + r.UserInfo.Username}
			response.AuditAnnotations = map[string]string{"seen": r.Name}
			return response
		}),
		validating("deny", func(context.Context, *admissionv1.AdmissionRequest) sdk.Response { return sdk.Deny("too short") }),
		validating("fail", func(context.Context, *admissionv1.AdmissionRequest) sdk.Response {
			return sdk.Fail(errors.New("no disk"))
		}),
		validating("panic", func(context.Context, *admissionv1.AdmissionRequest) sdk.Response { panic("at the disco") }),
	}}
	conn := sdktest.Connect(t, plugin.Register)
	client := admissionpb.NewAdmissionClient(conn)
	request := admissionv1.AdmissionRequest{UID: "u", Name: "a"}
	request.UserInfo.Username = "me"
	if r := sdktest.Review(t, conn, "allow", request, nil, nil); !r.Allowed || r.Warnings[0] != "by me" || r.AuditAnnotations["seen"] != "a" {
		t.Errorf("%+v", r)
	}
	if r := sdktest.Review(t, conn, "deny", request, nil, nil); r.Allowed || r.Result.Message != "too short" || r.Result.Code != 403 {
		t.Errorf("%+v", r)
	}

	text, err := json.Marshal(admissionv1.AdmissionReview{Request: &request})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Review(t.Context(), &admissionpb.ReviewRequest{Review: text, Encoding: pluginv1.Encoding_ENCODING_JSON, Hook: "allow"})
	if err != nil || !strings.Contains(string(answer.GetReview()), `"apiVersion":"admission.k8s.io/v1"`) || !strings.Contains(string(answer.GetReview()), `"uid":"u"`) {
		t.Errorf("as JSON: %s, %v", answer.GetReview(), err)
	}
	for _, tc := range []struct {
		name, hook string
		encoding   pluginv1.Encoding
		review     []byte
		code       codes.Code
		says       string
	}{
		{"a plugin that cannot decide", "fail", pluginv1.Encoding_ENCODING_JSON, text, codes.Unknown, "no disk"},
		{"a panic", "panic", pluginv1.Encoding_ENCODING_JSON, text, codes.Internal, "at the disco"},
		{"no such hook", "nothing", pluginv1.Encoding_ENCODING_JSON, text, codes.NotFound, `"nothing"`},
		{"no encoding", "allow", pluginv1.Encoding_ENCODING_UNSPECIFIED, text, codes.InvalidArgument, "encoding"},
		{"garbage", "allow", pluginv1.Encoding_ENCODING_JSON, []byte("{"), codes.InvalidArgument, "decode the review"},
		{"no request", "allow", pluginv1.Encoding_ENCODING_JSON, []byte("{}"), codes.InvalidArgument, "no request"},
	} {
		_, err := client.Review(t.Context(), &admissionpb.ReviewRequest{Review: tc.review, Encoding: tc.encoding, Hook: tc.hook})
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestObject(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	encoded, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: encoded}
	protobuf, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	protobuf = append([]byte("k8s\x00"), protobuf...)
	for name, raw := range map[string][]byte{"JSON": []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`), "protobuf": protobuf} {
		got, err := sdk.Object[corev1.Pod](runtime.RawExtension{Raw: raw})
		if err != nil || got.Name != "a" || got.Kind != "Pod" || got.APIVersion != "v1" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := sdk.Object[map[string]any](runtime.RawExtension{Raw: protobuf}); err == nil || !strings.Contains(err.Error(), "Pod") {
		t.Errorf("protobuf as a map: %v", err)
	}
	if _, err := sdk.Object[corev1.Pod](runtime.RawExtension{}); err == nil {
		t.Error("an object out of nothing")
	}
}

// TestPatch: the patch, applied to the object of the request, makes what the plugin changed and nothing else.
func TestPatch(t *testing.T) {
	const plain = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x/y":"1"}},"spec":{"containers":[{"name":"c","image":"i","future":{"a":1}}],"futureField":"kept"}}`
	for _, tc := range []struct {
		name   string
		object string
		change func(*corev1.Pod)
		want   string // as plain, when empty nothing changes
	}{
		{"nothing", plain, func(*corev1.Pod) {}, ""},
		{"a label", plain, func(p *corev1.Pod) { p.Labels["x/y"] = "2" }, strings.Replace(plain, `"x/y":"1"`, `"x/y":"2"`, 1)},
		{"the first annotation", plain, func(p *corev1.Pod) { p.Annotations = map[string]string{"n": ""} },
			strings.Replace(plain, `"labels"`, `"annotations":{"n":""},"labels"`, 1)},
		{"no labels", plain, func(p *corev1.Pod) { p.Labels = nil }, strings.Replace(plain, `,"labels":{"x/y":"1"}`, ``, 1)},
		{"a container more", plain, func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d"}) },
			strings.Replace(plain, `"future":{"a":1}}]`, `"future":{"a":1}},{"name":"d","resources":{}}]`, 1)},
		{"within a container", plain, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "j" }, strings.Replace(plain, `"image":"i"`, `"image":"j"`, 1)},
		{"a container before", plain, func(p *corev1.Pod) {
			p.Spec.Containers = append([]corev1.Container{{Name: "b"}}, p.Spec.Containers...)
		}, strings.Replace(plain, `[{"name":"c","image":"i","future":{"a":1}}]`, `[{"name":"b","resources":{}},{"name":"c","image":"i","resources":{}}]`, 1)},
		{"no container", plain, func(p *corev1.Pod) { p.Spec.Containers = nil },
			strings.Replace(plain, `[{"name":"c","image":"i","future":{"a":1}}]`, `null`, 1)},
	} {
		request := &admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: []byte(tc.object)}}
		pod, err := sdk.Object[corev1.Pod](request.Object)
		if err != nil {
			t.Fatal(err)
		}
		tc.change(pod)
		response := sdk.Patch(request, pod)
		if response.Err != nil || !response.Allowed {
			t.Errorf("%s: %+v", tc.name, response)
			continue
		}
		if tc.want == "" {
			if response.Patch != nil || response.PatchType != nil {
				t.Errorf("%s: patched by %s", tc.name, response.Patch)
			}
			continue
		}
		patch, err := jsonpatch.DecodePatch(response.Patch)
		if err != nil {
			t.Fatal(err)
		}
		got, err := patch.Apply([]byte(tc.object))
		if err != nil || !jsonpatch.Equal(got, []byte(tc.want)) {
			t.Errorf("%s: %s makes\n%s, want\n%s, %v", tc.name, response.Patch, got, tc.want, err)
		}
	}
	if response := sdk.Patch(&admissionv1.AdmissionRequest{}, &corev1.Pod{}); response.Err == nil {
		t.Error("a patch of no object")
	}
}
