package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/plugins"
)

// accessor is a hook as upstream's dispatchers see webhooks. All is upstream's but the client.
type accessor struct {
	webhook.WebhookAccessor
	plugin plugins.Plugin
	hook   string // its name in the plugin's description
	self   string // user whose requests no plugin reviews
}

var _ webhook.WebhookAccessor = (*accessor)(nil)

// GetRESTClient makes the client for one call: the dispatchers ask for each.
func (a *accessor) GetRESTClient(*webhookutil.ClientManager) (*rest.RESTClient, error) {
	c := &call{accessor: a}
	return rest.NewRESTClient(&url.URL{Scheme: "https", Host: a.plugin.Name() + domain}, "",
		rest.ClientContentConfig{ContentType: runtime.ContentTypeJSON, Negotiator: c}, nil, &http.Client{Transport: c})
}

// review asks the plugin, for those requests that plugins review.
func (a *accessor) review(ctx context.Context, review *admissionv1.AdmissionReview) (*admissionv1.AdmissionReview, error) {
	if review.Request.UserInfo.Username == a.self {
		return allowed(review.Request), nil
	}
	answer, err := a.ask(ctx, review)
	if err != nil && fromNode(review.Request) {
		return allowed(review.Request), nil
	}
	return answer, err
}

// fromNode says that a request keeps a node alive: its kubelet writes the Node, its CSINode or its Lease. A plugin may
// review them, but when one fails they pass whatever its failure policy: all pods of the node would be evicted.
func fromNode(r *admissionv1.AdmissionRequest) bool {
	return slices.Contains([]string{"nodes", "csinodes", "leases"}, r.Resource.Resource) && slices.Contains(r.UserInfo.Groups, "system:nodes")
}

func allowed(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionReview {
	return &admissionv1.AdmissionReview{TypeMeta: reviewType, Response: &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}}
}

// call is one review, as upstream's REST client sees it: the encoder of its request, the transport to the server and the decoder of
// the answer. The review passes through as it is; how it is encoded is between the transport and the plugin that runs by then.
type call struct {
	accessor *accessor
	request  *admissionv1.AdmissionReview
	answer   *admissionv1.AdmissionReview
	err      error
}

var (
	_ runtime.ClientNegotiator = (*call)(nil)
	_ runtime.Encoder          = (*call)(nil)
	_ runtime.Decoder          = (*call)(nil)
	_ http.RoundTripper        = (*call)(nil)
)

// Encoder implements runtime.ClientNegotiator.
func (c *call) Encoder(string, map[string]string) (runtime.Encoder, error) { return c, nil }

// Decoder implements runtime.ClientNegotiator.
func (c *call) Decoder(string, map[string]string) (runtime.Decoder, error) { return c, nil }

// StreamDecoder implements runtime.ClientNegotiator.
func (c *call) StreamDecoder(string, map[string]string) (runtime.Decoder, runtime.Serializer, runtime.Framer, error) {
	return nil, nil, nil, errors.New("a review is no stream")
}

// Encode implements runtime.Encoder.
func (c *call) Encode(object runtime.Object, _ io.Writer) error {
	review, ok := object.(*admissionv1.AdmissionReview)
	if !ok || review.Request == nil {
		return fmt.Errorf("plugins review v1 AdmissionReviews, not %T", object)
	}
	c.request = review
	return nil
}

// Identifier implements runtime.Encoder.
func (c *call) Identifier() runtime.Identifier { return "plugin" }

// RoundTrip implements http.RoundTripper. An error is kept for Decode: what http.Client makes of one names an address that does not exist.
func (c *call) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body.Close()
	}
	c.answer, c.err = c.accessor.review(r.Context(), c.request)
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader("answered")), // an empty one is an error to upstream
	}, nil
}

// Decode implements runtime.Decoder.
func (c *call) Decode(_ []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if c.err != nil {
		return nil, nil, c.err
	}
	review, ok := into.(*admissionv1.AdmissionReview)
	if !ok {
		return nil, nil, fmt.Errorf("plugins answer with v1 AdmissionReviews, not %T", into)
	}
	*review = *c.answer
	return review, nil, nil
}
