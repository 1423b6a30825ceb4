package otlp

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// JSON returns spans in the form of OTLP's files: one message in JSON. It is Protobuf's, except that IDs are in
// hexadecimal digits and enums are numbers.
//
// Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding.
func JSON(spans []*tracepb.ResourceSpans) ([]byte, error) {
	plain, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return nil, fmt.Errorf("encode spans: %w", err)
	}
	var message map[string]any
	if err := json.Unmarshal(plain, &message); err != nil {
		return nil, fmt.Errorf("encode spans: %w", err)
	}
	hexadecimal(message)
	return json.Marshal(message)
}

// hexadecimal rewrites the IDs of spans in hexadecimal.
func hexadecimal(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			hexadecimal(item)
		}
	case map[string]any:
		for key, item := range v {
			text, ok := item.(string)
			if id, err := base64.StdEncoding.DecodeString(text); ok && err == nil && (key == "traceId" || key == "spanId" || key == "parentSpanId") {
				v[key] = hex.EncodeToString(id)
				continue
			}
			hexadecimal(item)
		}
	}
}
