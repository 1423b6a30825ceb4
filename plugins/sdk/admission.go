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

// Admission is an admission plugin: what webhook configurations call webhooks, and the functions that answer.
type Admission struct {
	// Version of the plugin, for the operator.
	Version string
	// Configure, when set, is called once before the first review. An error refuses the plugin and is shown to the
	// operator. It may change Webhook of the hooks: they are described after it.
	Configure func(Config) error
	// Mutating and Validating hooks. All mutating ones are asked before any validating one.
	Mutating   []MutatingHook
	Validating []ValidatingHook
	// ProtobufObjects: objects of Kubernetes' own types come as protobuf, which costs a third of JSON. Read them by Object, which
	// knows both; custom resources are always JSON.
	ProtobufObjects bool
	// Metrics writes the plugin's own metrics as Prometheus text. nil: there are none.
	Metrics func(io.Writer) error
}

// Review answers a request. ctx ends with the time that is left for it.
type Review func(ctx context.Context, r *admissionv1.AdmissionRequest) Response

// MutatingHook may change objects.
type MutatingHook struct {
	// Webhook says what is reviewed. Its name is short ("inject"); clientConfig stays empty; sideEffects is None and
	// admissionReviewVersions v1 unless given.
	Webhook admissionregistrationv1.MutatingWebhook
	Review  Review
}

// ValidatingHook may deny requests.
type ValidatingHook struct {
	// Webhook says what is reviewed, as in MutatingHook.
	Webhook admissionregistrationv1.ValidatingWebhook
	Review  Review
}

// Response is the answer to a request. Warnings, AuditAnnotations and Result of the embedded type are as of webhooks.
type Response struct {
	admissionv1.AdmissionResponse
	// Err fails the call: the plugin could not decide, and the hook's failurePolicy does.
	Err error
}

// Allow lets a request pass as it is.
func Allow() Response {
	return Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true}}
}

// Deny refuses a request; the user reads the reason.
func Deny(reason string) Response {
	return Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Result: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: reason},
	}}
}

// Fail says that the plugin cannot decide.
func Fail(err error) Response { return Response{Err: err} }

// ServeAdmission serves the plugin until the host ends it. It is the last call of main.
func ServeAdmission(a Admission) {
	s := &admissionServer{plugin: a}
	serve(a.Metrics, s.describe, s.register)
}

// Register adds all that the plugin serves to a server of a test; see sdktest.
func (a Admission) Register(server *grpc.Server) {
	s := &admissionServer{plugin: a}
	grpcPlugin(a.Metrics, s.describe, s.register).GRPCServer(nil, server)
}

// admissionServer answers the host's calls.
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

// complete sets what a webhook must say and nearly every hook says alike.
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

// find is the function of a hook; nil when there is none of the name.
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

// call asks the plugin's function. A panic fails this request only: others are under way in the same process.
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
