package admission

import (
	"context"
	"errors"
	"net/url"
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	webhooktesting "k8s.io/apiserver/pkg/admission/plugin/webhook/testing"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/pluginstest"
	admissionpb "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// configurationName is that of upstream's cases.
const configurationName = "test-webhooks"

// paths answers as the webhook server of upstream's tests does, in v1: the hook's name is the path there.
// Source: k8s.io/apiserver/pkg/admission/plugin/webhook/testing/webhook_server.go.
type paths struct {
	admissionpb.UnimplementedAdmissionServer
}

func (paths) Review(_ context.Context, r *admissionpb.ReviewRequest) (*admissionpb.ReviewResponse, error) {
	request := &admissionv1.AdmissionReview{}
	if err := request.Unmarshal(r.GetReview()); err != nil {
		return nil, err
	}
	patch := func(text string) *admissionv1.AdmissionResponse {
		kind := admissionv1.PatchTypeJSONPatch
		return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(text), PatchType: &kind}
	}
	denied := func(message string) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: message, Code: 403}}
	}
	var response *admissionv1.AdmissionResponse
	switch r.GetHook() {
	case "internalErr":
		return nil, status.Error(codes.Internal, "webhook internal server error")
	case "nonStatusError":
		return nil, errors.New("bad-http")
	case "disallow":
		response = denied("")
	case "disallowReason":
		response = denied("you shall not pass")
	case "shouldNotBeCalled":
		response = denied("doesn't expect labels to match object selector")
	case "allow":
		response = &admissionv1.AdmissionResponse{Allowed: true, AuditAnnotations: map[string]string{"key1": "value1"}}
	case "invalidAnnotation":
		response = &admissionv1.AdmissionResponse{Allowed: true, AuditAnnotations: map[string]string{"invalid*key": "value1"}}
	case "removeLabel":
		response = patch(`[{"op": "remove", "path": "/metadata/labels/remove"}]`)
		response.AuditAnnotations = map[string]string{"key1": "value1"}
	case "addLabel":
		response = patch(`[{"op": "add", "path": "/metadata/labels/added", "value": "test"}]`)
	case "invalidPatch":
		response = patch(`[{`)
	case "invalidMutation":
		response = patch(`[{"op": "add", "CORRUPTED_KEY":}]`)
	case "noop":
		response = &admissionv1.AdmissionResponse{Allowed: true}
	case "nilResponse":
	default:
		return nil, status.Error(codes.NotFound, r.GetHook())
	}
	if response != nil {
		response.UID = request.Request.UID
	}
	data, err := (&admissionv1.AdmissionReview{Response: response}).Marshal()
	return &admissionpb.ReviewResponse{Review: data}, err
}

// fixed is a source of given hooks.
type fixed struct{ hooks []webhook.WebhookAccessor }

func (f fixed) Webhooks() []webhook.WebhookAccessor { return f.hooks }
func (fixed) HasSynced() bool                       { return true }
func (fixed) RunReloadLoop(ctx context.Context)     { <-ctx.Done() }

// upstreamCase is one case of upstream, of either type of webhook.
type upstreamCase struct {
	webhooktesting.MutatingTest
	validating []registrationv1.ValidatingWebhook
}

func path(c registrationv1.WebhookClientConfig) string {
	if c.Service != nil && c.Service.Path != nil {
		return *c.Service.Path
	}
	if c.URL != nil {
		if u, err := url.Parse(*c.URL); err == nil {
			return strings.TrimPrefix(u.Path, "/")
		}
	}
	return ""
}

// TestUpstreamCases runs the cases of upstream's own tests of webhooks, with a plugin in the place of the server.
func TestUpstreamCases(t *testing.T) {
	server := &url.URL{Scheme: "https", Host: "unused"}
	cases := []upstreamCase{}
	for _, c := range append(webhooktesting.NewMutatingTestCases(server, configurationName),
		webhooktesting.ConvertToMutatingTestCases(webhooktesting.NewNonMutatingTestCases(server), configurationName)...) {
		cases = append(cases, upstreamCase{MutatingTest: c})
	}
	for _, c := range webhooktesting.NewNonMutatingTestCases(server) {
		cases = append(cases, upstreamCase{validating: c.Webhooks, MutatingTest: webhooktesting.MutatingTest{
			Name: "validating " + c.Name, IsCRD: c.IsCRD, IsDryRun: c.IsDryRun, AdditionalLabels: c.AdditionalLabels, ExpectLabels: c.ExpectLabels,
			ExpectAllow: c.ExpectAllow, ErrorContains: c.ErrorContains, ExpectAnnotations: c.ExpectAnnotations, ExpectStatusCode: c.ExpectStatusCode,
		}})
	}
	ran := 0
	for _, tc := range cases {
		if strings.Contains(tc.Name, "invalid client config") {
			continue // plugins have no client configuration
		}
		for _, encoding := range []pluginv1.Encoding{pluginv1.Encoding_ENCODING_PROTOBUF, pluginv1.Encoding_ENCODING_PROTOBUF_OBJECTS} {
			ran++
			t.Run(tc.Name+"/"+encoding.String(), func(t *testing.T) {
				p := pluginstest.New(plugins.Admission, "cases", plugins.Settings{})
				p.Serve(t, func(s *grpc.Server) { admissionpb.RegisterAdmissionServer(s, paths{}) })
				p.SetDescription(&pluginv1.Description{
					Kind: &pluginv1.Description_Admission{Admission: &pluginv1.AdmissionDescription{Encodings: []pluginv1.Encoding{encoding}}}})
				tc.run(t, p)
			})
		}
	}
	if ran < 60 {
		t.Errorf("%d cases only: upstream has more", ran)
	}
}

func (tc upstreamCase) run(t *testing.T, p *pluginstest.Plugin) {
	v1 := []string{"v1"}
	hooks := []webhook.WebhookAccessor{}
	for _, w := range tc.Webhooks {
		w.AdmissionReviewVersions = v1
		hooks = append(hooks, &accessor{plugin: p, hook: path(w.ClientConfig), WebhookAccessor: webhook.NewMutatingWebhookAccessor(w.Name, configurationName, &w)})
	}
	for _, w := range tc.validating {
		w.AdmissionReviewVersions = v1
		hooks = append(hooks, &accessor{plugin: p, hook: path(w.ClientConfig), WebhookAccessor: webhook.NewValidatingWebhookAccessor(w.Name, configurationName, &w)})
	}
	const namespace = "webhook-test"
	attributes := webhooktesting.NewAttribute(namespace, tc.AdditionalLabels, tc.IsDryRun)
	if tc.IsCRD {
		attributes = webhooktesting.NewAttributeUnstructured(namespace, tc.AdditionalLabels, tc.IsDryRun)
	}
	var err error
	if tc.validating != nil {
		err = validatingChain(t, Options{}, fixed{hooks}).Validate(t.Context(), attributes, webhooktesting.NewObjectInterfacesForTest())
	} else {
		err = mutatingChain(t, Options{}, fixed{hooks}).Admit(t.Context(), attributes, webhooktesting.NewObjectInterfacesForTest())
	}
	if tc.ExpectAllow != (err == nil) {
		t.Fatalf("allowed is not %v: %v", tc.ExpectAllow, err)
	}
	if tc.ErrorContains == "webhook response was absent" {
		tc.ErrorContains = "its review has no response" // found before upstream looks
	}
	if tc.ErrorContains != "" && (err == nil || !strings.Contains(err.Error(), tc.ErrorContains)) {
		t.Errorf("want an error that says %q: %v", tc.ErrorContains, err)
	}
	if failed := (*apierrors.StatusError)(nil); err != nil && (!errors.As(err, &failed) || failed.ErrStatus.Code != tc.ExpectStatusCode) {
		t.Errorf("want status %d: %v", tc.ExpectStatusCode, err)
	}
	if labels := attributes.GetObject().(metav1.Object).GetLabels(); tc.ExpectLabels != nil && !reflect.DeepEqual(labels, tc.ExpectLabels) {
		t.Errorf("labels %v, want %v", labels, tc.ExpectLabels)
	}
	fake := attributes.(*webhooktesting.FakeAttributes)
	if got := fake.GetAnnotations(auditinternal.LevelMetadata); len(got)+len(tc.ExpectAnnotations) > 0 && !reflect.DeepEqual(got, tc.ExpectAnnotations) {
		t.Errorf("annotations\n%v, want\n%v", got, tc.ExpectAnnotations)
	}
	for hook, want := range tc.ExpectReinvokeWebhooks {
		invoked, ok := fake.GetReinvocationContext().Value(mutating.PluginName).(interface{ ShouldReinvokeWebhook(string) bool })
		if !ok || invoked.ShouldReinvokeWebhook(hook) != want {
			t.Errorf("hook %s is to be invoked again: not %v", hook, want)
		}
	}
}

// mutatingChain is the mutating plugin, initialised as the apiserver does, with a namespace webhook-test. With
// from, the hooks are from there instead of the options.
func mutatingChain(t testing.TB, o Options, from generic.ReloadableSource) *mutatingPlugin {
	t.Helper()
	p, err := newMutating(nil, o)
	if err != nil {
		t.Fatal(err)
	}
	p.SetManifestLoaders(&initializer.ManifestLoaders{})
	if from != nil {
		p.SetStaticSourceFactory(func(string) (generic.ReloadableSource, error) { return from, nil })
	}
	client, informers := webhooktesting.NewFakeMutatingDataSource("webhook-test", nil, nil)
	p.SetExternalKubeClientSet(client)
	p.SetExternalKubeInformerFactory(informers)
	p.SetDrainedNotification(t.Context().Done())
	if err := admission.ValidateInitialization(p); err != nil {
		t.Fatal(err)
	}
	informers.Start(t.Context().Done())
	informers.WaitForCacheSync(t.Context().Done())
	return p
}

// validatingChain is as mutatingChain.
func validatingChain(t testing.TB, o Options, from generic.ReloadableSource) *validatingPlugin {
	t.Helper()
	p, err := newValidating(nil, o)
	if err != nil {
		t.Fatal(err)
	}
	p.SetManifestLoaders(&initializer.ManifestLoaders{})
	if from != nil {
		p.SetStaticSourceFactory(func(string) (generic.ReloadableSource, error) { return from, nil })
	}
	client, informers := webhooktesting.NewFakeValidatingDataSource("webhook-test", nil, nil)
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, Labels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), system, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.SetExternalKubeClientSet(client)
	p.SetExternalKubeInformerFactory(informers)
	p.SetDrainedNotification(t.Context().Done())
	if err := admission.ValidateInitialization(p); err != nil {
		t.Fatal(err)
	}
	informers.Start(t.Context().Done())
	informers.WaitForCacheSync(t.Context().Done())
	return p
}
