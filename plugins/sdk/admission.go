package sdk

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionpb "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Admission is an admission plugin: hooks, which are webhooks without a server, and the functions that review requests.
type Admission struct {
	// Version of the plugin, shown to the operator.
	Version string
	// Configure is called once before the first review. An error refuses the plugin and is shown to the operator. It
	// may change Webhook of the hooks, which are described afterwards. May be nil.
	Configure func(Config) error
	// Mutating and Validating hooks. All mutating hooks run before any validating one.
	Mutating   []MutatingHook
	Validating []ValidatingHook
	// ProtobufObjects makes the host send objects of Kubernetes' own types as protobuf, at a third of the cost of JSON.
	// Decode them by Object, which understands both; custom resources are always JSON.
	ProtobufObjects bool
	// Metrics writes the plugin's own metrics as Prometheus text; nil: it has none.
	Metrics func(io.Writer) error
}

// Review decides on a request. ctx has the deadline of the call.
type Review func(ctx context.Context, r *admissionv1.AdmissionRequest) Response

// MutatingHook may change objects.
type MutatingHook struct {
	// Webhook declares what is reviewed. Its name is short ("inject"); clientConfig stays empty; sideEffects defaults
	// to None and admissionReviewVersions to v1.
	Webhook admissionregistrationv1.MutatingWebhook
	Review  Review
}

// ValidatingHook may deny requests.
type ValidatingHook struct {
	// Webhook declares what is reviewed, as in MutatingHook.
	Webhook admissionregistrationv1.ValidatingWebhook
	Review  Review
}

// Response is the answer to a request. Warnings, AuditAnnotations and Result of the embedded type mean the same as in a
// webhook's answer.
type Response struct {
	admissionv1.AdmissionResponse
	// Err fails the call: the plugin could not decide, so the hook's failurePolicy does.
	Err error
}

// Allow admits a request unchanged.
func Allow() Response {
	return Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true}}
}

// Deny refuses a request; the user sees the reason.
func Deny(reason string) Response {
	return Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Result: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: reason},
	}}
}

// Fail reports that the plugin could not decide; the hook's failurePolicy does.
func Fail(err error) Response { return Response{Err: err} }

// ServeAdmission serves the plugin until the host stops it. It must be the last call of main.
func ServeAdmission(a Admission) {
	s := &admissionServer{plugin: a}
	serve(a.Metrics, s.describe, s.register)
}

// Register adds the plugin's services to a server, for tests; see sdktest.
func (a Admission) Register(server *grpc.Server) {
	s := &admissionServer{plugin: a}
	grpcPlugin(a.Metrics, s.describe, s.register).GRPCServer(nil, server)
}

// admissionServer implements the service of admission plugins.
type admissionServer struct {
	admissionpb.UnimplementedAdmissionServer
	plugin Admission
}

func (s *admissionServer) register(server grpc.ServiceRegistrar) {
	admissionpb.RegisterAdmissionServer(server, s)
}

func (s *admissionServer) describe(r *pluginv1.DescribeRequest) (*pluginv1.Description, error) {
	config := configOf(r)
	if s.plugin.Configure != nil {
		if err := s.plugin.Configure(config); err != nil {
			return nil, err
		}
	}
	d := &pluginv1.AdmissionDescription{Encodings: []pluginv1.Encoding{pluginv1.Encoding_ENCODING_PROTOBUF, pluginv1.Encoding_ENCODING_JSON}}
	if s.plugin.ProtobufObjects {
		d.Encodings = append([]pluginv1.Encoding{pluginv1.Encoding_ENCODING_PROTOBUF_OBJECTS}, d.Encodings...)
	}
	for _, h := range s.plugin.Mutating {
		w := h.Webhook
		complete(&w.SideEffects, &w.AdmissionReviewVersions)
		text, err := json.Marshal(w)
		if err != nil {
			return nil, fmt.Errorf("hook %s: %w", w.Name, err)
		}
		d.Mutating = append(d.Mutating, text)
	}
	for _, h := range s.plugin.Validating {
		w := h.Webhook
		complete(&w.SideEffects, &w.AdmissionReviewVersions)
		text, err := json.Marshal(w)
		if err != nil {
			return nil, fmt.Errorf("hook %s: %w", w.Name, err)
		}
		d.Validating = append(d.Validating, text)
	}
	return &pluginv1.Description{Version: s.plugin.Version, Kind: &pluginv1.Description_Admission{Admission: d}}, nil
}

// complete sets the defaults of required fields.
func complete(sideEffects **admissionregistrationv1.SideEffectClass, versions *[]string) {
	if *sideEffects == nil {
		none := admissionregistrationv1.SideEffectClassNone
		*sideEffects = &none
	}
	if len(*versions) == 0 {
		*versions = []string{admissionv1.SchemeGroupVersion.Version}
	}
}

// Review implements admissionpb.AdmissionServer.
func (s *admissionServer) Review(ctx context.Context, r *admissionpb.ReviewRequest) (*admissionpb.ReviewResponse, error) {
	answer := s.find(r.GetHook())
	if answer == nil {
		return nil, status.Errorf(codes.NotFound, "this plugin has no hook %q", r.GetHook())
	}
	review, err := decodeReview(r.GetReview(), r.GetEncoding())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	response, err := call(ctx, answer, review.Request)
	if err != nil {
		return nil, err
	}
	response.UID = review.Request.UID
	out, err := encodeReview(&response.AdmissionResponse, r.GetEncoding())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &admissionpb.ReviewResponse{Review: out}, nil
}

// find returns the function of a hook; nil if there is none of that name.
func (s *admissionServer) find(hook string) Review {
	for i := range s.plugin.Mutating {
		if s.plugin.Mutating[i].Webhook.Name == hook {
			return s.plugin.Mutating[i].Review
		}
	}
	for i := range s.plugin.Validating {
		if s.plugin.Validating[i].Webhook.Name == hook {
			return s.plugin.Validating[i].Review
		}
	}
	return nil
}

// call calls the plugin's function. A panic fails this request only, as others are under way in the same process.
func call(ctx context.Context, answer Review, r *admissionv1.AdmissionRequest) (response Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			newLog().Error("panic in a review", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "panic: %v", p)
		}
	}()
	response = answer(ctx, r)
	if response.Err != nil {
		return response, status.Error(codes.Unknown, response.Err.Error())
	}
	return response, nil
}
