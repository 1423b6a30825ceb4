package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// protobufMagic begins an object in protobuf; a runtime.Unknown follows, as in requests to the API.
var protobufMagic = []byte("k8s\x00")

// decodeReview decodes the host's review. It has a request.
func decodeReview(data []byte, encoding pluginv1.Encoding) (*admissionv1.AdmissionReview, error) {
	review := &admissionv1.AdmissionReview{}
	var err error
	switch encoding {
	case pluginv1.Encoding_ENCODING_PROTOBUF, pluginv1.Encoding_ENCODING_PROTOBUF_OBJECTS:
		err = review.Unmarshal(data)
	case pluginv1.Encoding_ENCODING_JSON:
		err = json.Unmarshal(data, review)
	default:
		return nil, fmt.Errorf("this plugin does not read encoding %v", encoding)
	}
	if err != nil {
		return nil, fmt.Errorf("decode the review: %w", err)
	}
	if review.Request == nil {
		return nil, errors.New("the review has no request")
	}
	return review, nil
}

// encodeReview encodes an answer like the request.
func encodeReview(response *admissionv1.AdmissionResponse, encoding pluginv1.Encoding) ([]byte, error) {
	review := &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: response,
	}
	if encoding == pluginv1.Encoding_ENCODING_JSON {
		return json.Marshal(review)
	}
	return review.Marshal()
}

// Object decodes an object of a request (Object, OldObject, Options) as a T: a Kubernetes type, or for a custom
// resource a struct with json tags or a map. It fails if the request has no such object, such as the Object of a
// DELETE.
func Object[T any](raw runtime.RawExtension) (*T, error) {
	object := new(T)
	if len(raw.Raw) == 0 {
		return nil, errors.New("the request has no such object")
	}
	if !bytes.HasPrefix(raw.Raw, protobufMagic) {
		if err := json.Unmarshal(raw.Raw, object); err != nil {
			return nil, fmt.Errorf("decode %T: %w", object, err)
		}
		return object, nil
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(raw.Raw[len(protobufMagic):]); err != nil {
		return nil, fmt.Errorf("decode %T: %w", object, err)
	}
	message, ok := any(object).(interface{ Unmarshal([]byte) error })
	if !ok {
		return nil, fmt.Errorf("decode %s %s as %T: not a type of Kubernetes", unknown.APIVersion, unknown.Kind, object)
	}
	if err := message.Unmarshal(unknown.Raw); err != nil {
		return nil, fmt.Errorf("decode %T: %w", object, err)
	}
	if typed, ok := any(object).(runtime.Object); ok {
		typed.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(unknown.APIVersion, unknown.Kind))
	}
	return object, nil
}
