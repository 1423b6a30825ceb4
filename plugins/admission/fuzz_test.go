package admission

import (
	"encoding/json"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// FuzzAnswer: whatever a plugin answers to a review is an error, or an answer to that request whose patch applies.
func FuzzAnswer(f *testing.F) {
	kind := admissionv1.PatchTypeJSONPatch
	for _, response := range []*admissionv1.AdmissionResponse{
		nil,
		{UID: "u", Allowed: true},
		{UID: "other", Allowed: true},
		{UID: "u", Allowed: true, PatchType: &kind, Patch: []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`)},
		{UID: "u", Allowed: true, PatchType: &kind, Patch: []byte(`[{"op":"replace","path":"","value":null}]`)},
		{UID: "u", Allowed: true, PatchType: &kind, Patch: []byte(`[{"op":"copy","from":"/spec","path":"/spec/a"}]`)},
	} {
		review := &admissionv1.AdmissionReview{TypeMeta: reviewType, Response: response}
		text, err := json.Marshal(review)
		if err != nil {
			f.Fatal(err)
		}
		raw, err := review.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, true)
		f.Add(raw, false)
	}
	hook := &accessor{WebhookAccessor: webhook.NewMutatingWebhookAccessor("uid", "a", &registrationv1.MutatingWebhook{Name: "a"})}
	f.Fuzz(func(t *testing.T, data []byte, isJSON bool) {
		encoding := pluginv1.Encoding_ENCODING_PROTOBUF
		if isJSON {
			encoding = pluginv1.Encoding_ENCODING_JSON
		}
		answer, err := decodeAnswer(data, encoding)
		if err != nil {
			return
		}
		object := pod(nil).GetObject()
		before := object.DeepCopyObject()
		request := &admissionv1.AdmissionRequest{UID: "u", Object: runtime.RawExtension{Object: object}}
		if err := hook.check(request, answer.Response); err == nil && answer.Response.UID != "u" {
			t.Errorf("an answer to %q is accepted", answer.Response.UID)
		}
		if a, b := mustJSON(t, before), mustJSON(t, object); a != b {
			t.Errorf("looking at a patch has changed the object from %s to %s", a, b)
		}
	})
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
