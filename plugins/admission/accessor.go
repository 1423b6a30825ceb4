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
	"k8s.io/apiserver/pkg/authentication/user"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/plugins"
)

// accessor presents a hook to upstream's dispatchers as a webhook. Only the client differs from upstream's.
type accessor struct {
	webhook.WebhookAccessor
	plugin plugins.Plugin
	hook   string // its name in the plugin's description
}

var _ webhook.WebhookAccessor = (*accessor)(nil)

// GetRESTClient returns a client for one call: the dispatchers request one for each call.
func (a *accessor) GetRESTClient(*webhookutil.ClientManager) (*rest.RESTClient, error) {
	c := &call{accessor: a}
	return rest.NewRESTClient(&url.URL{Scheme: "https", Host: a.plugin.Name() + domain}, "",
		rest.ClientContentConfig{ContentType: runtime.ContentTypeJSON, Negotiator: c}, nil, &http.Client{Transport: c})
}

// review calls the plugin, except for the apiserver's own requests: without the objects that they create at the start
// there is no cluster in which an operator could fix a plugin.
func (a *accessor) review(ctx context.Context, review *admissionv1.AdmissionReview) (*admissionv1.AdmissionReview, error) {
	if review.Request.UserInfo.Username == user.APIServerUser {
		return allowed(review.Request), nil
	}
	answer, err := a.ask(ctx, review)
	if err != nil && fromNode(review.Request) {
		return allowed(review.Request), nil
	}
	return answer, err
}

// fromNode reports whether a request keeps a node alive: its kubelet writes the Node, its CSINode or its Lease. Plugins
// may review these requests, but if a plugin fails, they pass whatever its failure policy: otherwise all pods of the
// node would be evicted.
func fromNode(r *admissionv1.AdmissionRequest) bool {
	return slices.Contains([]string{"nodes", "csinodes", "leases"}, r.Resource.Resource) && slices.Contains(r.UserInfo.Groups, user.NodesGroup)
}

func allowed(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionReview {
	return &admissionv1.AdmissionReview{TypeMeta: reviewType, Response: &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}}
}

// call is one review. Upstream's REST client uses it as encoder of the request, transport, and decoder of the answer.
// The review passes through unencoded: the plugin's process that serves at RoundTrip decides the encoding.
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
	return nil, nil, nil, errors.New("a review is not a stream")
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

// RoundTrip implements http.RoundTripper. It keeps an error for Decode: http.Client would wrap it with an address that
// does not exist.
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
