package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	kjson "sigs.k8s.io/json"

	"kubelith.io/kubelith/plugins"
	admissionpb "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// badAnswer returns the error for an unusable answer, which counts as a failed call.
const badAnswer = codes.DataLoss

var (
	reviewType  = metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}
	protobufAPI = protobuf.NewSerializer(nil, nil)
)

// ask sends a review to the process that serves now and checks the answer. An error is a failed call, so failurePolicy
// decides.
func (a *accessor) ask(ctx context.Context, review *admissionv1.AdmissionReview) (*admissionv1.AdmissionReview, error) {
	encoding := preferred(a.plugin.Description().GetAdmission().GetEncodings())
	data, err := encode(review, encoding)
	if err != nil {
		return nil, err
	}
	var answer *admissionv1.AdmissionReview
	err = a.plugin.Call(ctx, "Review", func(ctx context.Context, to plugins.Instance) error {
		out, err := admissionpb.NewAdmissionClient(to.Conn).Review(ctx, &admissionpb.ReviewRequest{Review: data, Encoding: encoding, Hook: a.hook})
		if err != nil {
			return err
		}
		if answer, err = decodeAnswer(out.GetReview(), encoding); err == nil {
			err = a.check(review.Request, answer.Response)
		}
		if err != nil {
			return status.Error(badAnswer, err.Error())
		}
		return nil
	})
	if err != nil {
		return nil, explain(a.plugin.Name(), err)
	}
	return answer, nil
}

// explain returns one line about why a call of a plugin failed.
func explain(plugin string, err error) error {
	if down := (*plugins.NotRunningError)(nil); errors.As(err, &down) {
		return down
	}
	switch s := status.Convert(err); {
	case s.Code() == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("plugin %s did not answer in time: %w", plugin, context.DeadlineExceeded)
	case s.Code() == codes.Canceled || errors.Is(err, context.Canceled):
		return fmt.Errorf("plugin %s: %w", plugin, context.Canceled)
	default:
		return fmt.Errorf("plugin %s: %s", plugin, s.Message())
	}
}

// check returns the error in an answer, if any. Upstream checks most of it too, but applies patches after the failure
// policy, where a bad one would fail the request.
func (a *accessor) check(r *admissionv1.AdmissionRequest, answer *admissionv1.AdmissionResponse) error {
	switch {
	case answer == nil:
		return errors.New("its review has no response")
	case answer.UID != r.UID:
		return fmt.Errorf("its response has the uid %q, the request %q", answer.UID, r.UID)
	case len(answer.Patch) == 0 || !answer.Allowed:
		return nil
	}
	if _, mutating := a.GetMutatingWebhook(); !mutating {
		return errors.New("a validating hook answered with a patch")
	}
	if err := applies(answer.Patch, r.Object.Object); err != nil {
		return fmt.Errorf("its patch is invalid: %w", err)
	}
	return nil
}

// applies returns an error if a patch does not apply, or if its result is no object of the same kind.
func applies(text []byte, object runtime.Object) error {
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil || len(patch) == 0 {
		return err
	}
	if object == nil {
		return errors.New("the request has no object to change")
	}
	before, err := json.Marshal(object)
	if err != nil {
		return err
	}
	after, err := patch.Apply(before)
	if err != nil {
		return err
	}
	changed := reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(after, changed); err != nil {
		return err
	}
	if was, is := object.GetObjectKind().GroupVersionKind(), changed.GetObjectKind().GroupVersionKind(); was != is {
		return fmt.Errorf("it turns a %v into a %v", was, is)
	}
	return nil
}

// preferred returns the first encoding that Kubelith supports; JSON if there is none.
func preferred(encodings []pluginv1.Encoding) pluginv1.Encoding {
	for _, e := range encodings {
		switch e {
		case pluginv1.Encoding_ENCODING_JSON, pluginv1.Encoding_ENCODING_PROTOBUF, pluginv1.Encoding_ENCODING_PROTOBUF_OBJECTS:
			return e
		}
	}
	return pluginv1.Encoding_ENCODING_JSON
}

// encode encodes a review for a plugin.
func encode(review *admissionv1.AdmissionReview, encoding pluginv1.Encoding) ([]byte, error) {
	review.TypeMeta = reviewType
	if encoding == pluginv1.Encoding_ENCODING_JSON {
		return json.Marshal(review)
	}
	r := review.Request
	for _, extension := range []*runtime.RawExtension{&r.Object, &r.OldObject, &r.Options} {
		if extension.Object == nil {
			continue
		}
		raw, err := encodeObject(extension.Object, encoding)
		if err != nil {
			return nil, err
		}
		extension.Raw = raw
	}
	return review.Marshal()
}

// encodeObject encodes an object of a review: as protobuf if the plugin reads it and the type has it.
func encodeObject(object runtime.Object, encoding pluginv1.Encoding) ([]byte, error) {
	if _, ok := object.(interface{ Unmarshal([]byte) error }); ok && encoding == pluginv1.Encoding_ENCODING_PROTOBUF_OBJECTS {
		var out bytes.Buffer
		err := protobufAPI.Encode(object, &out)
		return out.Bytes(), err
	}
	return json.Marshal(object)
}

// decodeAnswer decodes a plugin's answer.
func decodeAnswer(data []byte, encoding pluginv1.Encoding) (*admissionv1.AdmissionReview, error) {
	review := &admissionv1.AdmissionReview{}
	if encoding != pluginv1.Encoding_ENCODING_JSON {
		review.TypeMeta = reviewType
		if err := review.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("its response is not an AdmissionReview: %w", err)
		}
		return review, nil
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, review); err != nil {
		return nil, fmt.Errorf("its response is not an AdmissionReview: %w", err)
	}
	if review.TypeMeta != reviewType {
		return nil, fmt.Errorf("its response is %s %s, not %s %s", review.APIVersion, review.Kind, reviewType.APIVersion, reviewType.Kind)
	}
	return review, nil
}
