package admission

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	webhooktesting "k8s.io/apiserver/pkg/admission/plugin/webhook/testing"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/utils/ptr"

	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/pluginstest"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/sdk"
)

func quiet() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

func options(set plugins.Set) Options { return Options{Plugins: set, Log: quiet()} }

// everything is a rule for all requests.
var everything = []registrationv1.RuleWithOperations{{
	Operations: []registrationv1.OperationType{registrationv1.OperationAll},
	Rule:       registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
}}

func mutates(review sdk.Review, change ...func(*registrationv1.MutatingWebhook)) sdk.Admission {
	w := registrationv1.MutatingWebhook{Name: "hook", Rules: everything}
	for _, f := range change {
		f(&w)
	}
	return sdk.Admission{Mutating: []sdk.MutatingHook{{Webhook: w, Review: review}}}
}

func validates(review sdk.Review, change ...func(*registrationv1.ValidatingWebhook)) sdk.Admission {
	w := registrationv1.ValidatingWebhook{Name: "hook", Rules: everything}
	for _, f := range change {
		f(&w)
	}
	return sdk.Admission{Validating: []sdk.ValidatingHook{{Webhook: w, Review: review}}}
}

func denies(context.Context, *admissionv1.AdmissionRequest) sdk.Response { return sdk.Deny("no") }

// pod is a request to create one in the chain's namespace.
func pod(labels map[string]string) admission.Attributes {
	object := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "webhook-test", Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}}}
	return request(object, nil, "pods", "", admission.Create, "me")
}

func request(object, old runtime.Object, resource, subresource string, operation admission.Operation, name string, groups ...string) admission.Attributes {
	seen := object
	if seen == nil {
		seen = old
	}
	kind := seen.GetObjectKind().GroupVersionKind()
	return admission.NewAttributesRecord(object, old, kind, "webhook-test", "a", kind.GroupVersion().WithResource(resource), subresource, operation,
		&metav1.CreateOptions{}, false, &user.DefaultInfo{Name: name, Groups: groups})
}

var interfaces = webhooktesting.NewObjectInterfacesForTest()

// TestPatch: a patch changes the object, in every encoding; one that cannot be used is a failed call, whatever makes it
// so.
func TestPatch(t *testing.T) {
	const label = `[{"op":"add","path":"/metadata/labels","value":{"added":"yes"}}]`
	newPod := func() admission.Attributes { return pod(nil) }
	for _, tc := range []struct {
		name   string
		patch  string
		from   func() admission.Attributes
		reason string // why it cannot be used
	}{
		{"of a pod", label, newPod, ""},
		{"of a custom resource", label, func() admission.Attributes {
			object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "custom.resource/v1", "kind": "Test", "metadata": map[string]any{"name": "a"}}}
			return request(object, nil, "tests", "", admission.Create, "me")
		}, ""},
		{"undecodable", `[{`, newPod, "its patch is invalid"},
		{"to a field that is not there", `[{"op":"replace","path":"/spec/nothing/at","value":1}]`, newPod, "its patch is invalid"},
		{"to another type", `[{"op":"replace","path":"/spec","value":"text"}]`, newPod, "its patch is invalid"},
		{"to another kind", `[{"op":"replace","path":"/kind","value":"Secret"}]`, newPod, "it turns a /v1, Kind=Pod into a /v1, Kind=Secret"},
		{"of what is deleted", label, func() admission.Attributes {
			return request(nil, pod(nil).GetObject(), "pods", "", admission.Delete, "me")
		}, "no object to change"},
	} {
		review := func(context.Context, *admissionv1.AdmissionRequest) sdk.Response {
			r := sdk.Allow()
			r.Patch, r.PatchType = []byte(tc.patch), ptr.To(admissionv1.PatchTypeJSONPatch)
			return r
		}
		for _, encoding := range []pluginv1.Encoding{pluginv1.Encoding_ENCODING_JSON, pluginv1.Encoding_ENCODING_PROTOBUF, pluginv1.Encoding_ENCODING_PROTOBUF_OBJECTS} {
			for _, policy := range []registrationv1.FailurePolicyType{registrationv1.Ignore, registrationv1.Fail} {
				t.Run(fmt.Sprintf("%s/%v/%s", tc.name, encoding, policy), func(t *testing.T) {
					p := serve(t, "a", mutates(review), plugins.Settings{FailurePolicy: string(policy)})
					p.Description().GetAdmission().Encodings = []pluginv1.Encoding{encoding}
					attributes := tc.from()
					err := mutatingChain(t, options(pluginstest.NewSet(p)), nil).Admit(t.Context(), attributes, interfaces)
					if tc.reason == "" {
						if err != nil || attributes.GetObject().(metav1.Object).GetLabels()["added"] != "yes" {
							t.Errorf("%v, %v", attributes.GetObject(), err)
						}
						return
					}
					if policy == registrationv1.Ignore && err != nil {
						t.Errorf("its failures are to be ignored: %v", err)
					}
					if policy == registrationv1.Fail && (!apierrors.IsInternalError(err) || !strings.Contains(err.Error(), tc.reason)) {
						t.Errorf("want an error that says %q: %v", tc.reason, err)
					}
					if object := attributes.GetObject(); object != nil && len(object.(metav1.Object).GetLabels()) > 0 {
						t.Errorf("it is changed nevertheless: %v", object)
					}
					if status.Code(p.LastError()) != badAnswer {
						t.Errorf("it is not counted as a bad answer: %v", p.LastError())
					}
				})
			}
		}
	}
}

// TestDenial: users read the reason, with its code and the hook's name, and the warnings.
func TestDenial(t *testing.T) {
	p := serve(t, "short-secrets", validates(func(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
		response := sdk.Deny("too short for " + r.UserInfo.Username)
		response.Result.Code = 422
		response.Warnings = []string{"think of another"}
		return response
	}), plugins.Settings{})
	warnings := &recorder{}
	err := validatingChain(t, options(pluginstest.NewSet(p)), nil).Validate(warning.WithWarningRecorder(t.Context(), warnings), pod(nil), interfaces)
	failed, ok := err.(*apierrors.StatusError)
	if !ok || failed.ErrStatus.Code != 422 || failed.ErrStatus.Message != `admission webhook "hook.short-secrets.plugin.kubelith.io" denied the request: too short for me` {
		t.Errorf("%#v", err)
	}
	if !slices.Equal(warnings.texts, []string{"think of another"}) {
		t.Errorf("warnings %q", warnings.texts)
	}
}

type recorder struct{ texts []string }

func (r *recorder) AddWarning(_, text string) { r.texts = append(r.texts, text) }

// TestMatching: the rules that the plugin described decide which requests it gets.
func TestMatching(t *testing.T) {
	exec := &corev1.PodExecOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodExecOptions"}, Command: []string{"sh"}}
	connect := func() admission.Attributes { return request(exec, nil, "pods", "exec", admission.Connect, "me") }
	for _, tc := range []struct {
		name   string
		change func(*registrationv1.ValidatingWebhook)
		from   func() admission.Attributes
		asked  bool
	}{
		{"everything", func(*registrationv1.ValidatingWebhook) {}, func() admission.Attributes { return pod(nil) }, true},
		{"CONNECT", func(w *registrationv1.ValidatingWebhook) {
			w.Rules = []registrationv1.RuleWithOperations{{Operations: []registrationv1.OperationType{registrationv1.Connect},
				Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/exec"}}}}
		}, connect, true},
		{"not CONNECT", func(w *registrationv1.ValidatingWebhook) {
			w.Rules = []registrationv1.RuleWithOperations{{Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/exec"}}}}
		}, connect, false},
		{"another label of the object", func(w *registrationv1.ValidatingWebhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"review": "yes"}}
		}, func() admission.Attributes { return pod(map[string]string{"review": "no"}) }, false},
		{"the label of the object", func(w *registrationv1.ValidatingWebhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"review": "yes"}}
		}, func() admission.Attributes { return pod(map[string]string{"review": "yes"}) }, true},
		{"another label of the namespace", func(w *registrationv1.ValidatingWebhook) {
			w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"runlevel": "1"}}
		}, func() admission.Attributes { return pod(nil) }, false},
		{"a condition that is true", func(w *registrationv1.ValidatingWebhook) {
			w.MatchConditions = []registrationv1.MatchCondition{{Name: "me", Expression: "request.userInfo.username == 'me' && object.metadata.name == 'a'"}}
		}, func() admission.Attributes { return pod(nil) }, true},
		{"a condition that is false", func(w *registrationv1.ValidatingWebhook) {
			w.MatchConditions = []registrationv1.MatchCondition{{Name: "you", Expression: "request.userInfo.username == 'you'"}}
		}, func() admission.Attributes { return pod(nil) }, false},
		{"its own requests", func(*registrationv1.ValidatingWebhook) {}, func() admission.Attributes {
			return request(pod(nil).GetObject(), nil, "pods", "", admission.Create, user.APIServerUser)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := serve(t, "a", validates(denies, tc.change), plugins.Settings{})
			err := validatingChain(t, options(pluginstest.NewSet(p)), nil).Validate(t.Context(), tc.from(), interfaces)
			if tc.asked != apierrors.IsForbidden(err) || !tc.asked && err != nil {
				t.Errorf("asked is not %v: %v", tc.asked, err)
			}
		})
	}
}

// TestFailures: a plugin that is away, slow or cannot decide follows the policy: the operator's, before its own.
func TestFailures(t *testing.T) {
	slow := func(ctx context.Context, _ *admissionv1.AdmissionRequest) sdk.Response {
		<-ctx.Done()
		return sdk.Allow()
	}
	cannot := func(context.Context, *admissionv1.AdmissionRequest) sdk.Response { return sdk.Fail(context.Canceled) }
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	for _, tc := range []struct {
		name     string
		review   sdk.Review
		down     bool
		settings plugins.Settings
		from     admission.Attributes
		says     string // the error; empty: it passes
	}{
		{"away, by default", denies, true, plugins.Settings{}, pod(nil), "plugin a is not running: ended with status 2"},
		{"away, ignored", denies, true, plugins.Settings{FailurePolicy: "Ignore"}, pod(nil), ""},
		{"away, with the heartbeat of a node", denies, true, plugins.Settings{}, request(node, node, "nodes", "status", admission.Update, "system:node:a", "system:nodes"), ""},
		{"away, with a Node by a user", denies, true, plugins.Settings{}, request(node, node, "nodes", "", admission.Update, "me"), "is not running"},
		{"there, with the heartbeat of a node", denies, false, plugins.Settings{}, request(node, node, "nodes", "status", admission.Update, "system:node:a", "system:nodes"), "denied the request: no"},
		{"slow", slow, false, plugins.Settings{Timeout: 10 * time.Millisecond}, pod(nil), "plugin a did not answer in time"},
		{"slow, ignored", slow, false, plugins.Settings{Timeout: 10 * time.Millisecond, FailurePolicy: "Ignore"}, pod(nil), ""},
		{"undecided", cannot, false, plugins.Settings{}, pod(nil), "plugin a: context canceled"},
		{"panics", func(context.Context, *admissionv1.AdmissionRequest) sdk.Response { panic("oh") }, false, plugins.Settings{}, pod(nil), "plugin a: panic: oh"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := serve(t, "a", validates(tc.review), tc.settings)
			if tc.down {
				p.Kill()
			}
			err := validatingChain(t, options(pluginstest.NewSet(p)), nil).Validate(t.Context(), tc.from, interfaces)
			if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("want %q: %v", tc.says, err)
			}
			if err != nil && strings.Contains(err.Error(), "https://") {
				t.Errorf("the error names an address that does not exist: %v", err)
			}
		})
	}
}

// TestNeverRan: a plugin without any description blocks requests unless the operator sets Ignore, but never those that
// keep the cluster going.
func TestNeverRan(t *testing.T) {
	in := func(namespace string) admission.Attributes {
		object := pod(nil).GetObject().(*corev1.Pod)
		object.Namespace = namespace
		kind := object.GroupVersionKind()
		return admission.NewAttributesRecord(object, nil, kind, namespace, "a", kind.GroupVersion().WithResource("pods"), "", admission.Create, nil, false, &user.DefaultInfo{Name: "me"})
	}
	object := pod(nil).GetObject()
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	event := &corev1.Event{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}}
	for _, tc := range []struct {
		name   string
		policy string
		from   admission.Attributes
		passes bool
	}{
		{"no policy", "", in("webhook-test"), false},
		{"no policy in kube-system", "", in(metav1.NamespaceSystem), true},
		{"Ignore", "Ignore", in("webhook-test"), true},
		{"Fail", "Fail", in("webhook-test"), false},
		{"Fail in kube-system", "Fail", in(metav1.NamespaceSystem), true},
		{"a kubelet's status of a pod", "", request(object, object, "pods", "status", admission.Update, "system:node:a", "system:nodes"), true},
		{"the scheduler's binding", "", request(object, nil, "pods", "binding", admission.Create, "system:kube-scheduler"), true},
		{"a controller's status", "", request(object, object, "deployments", "status", admission.Update, "system:serviceaccount:kube-system:deployment-controller"), true},
		{"a controller's endpoints", "", request(object, object, "endpointslices", "", admission.Update, "system:serviceaccount:kube-system:endpointslice-controller"), true},
		{"a controller's pod", "", request(object, nil, "pods", "", admission.Create, "system:serviceaccount:kube-system:replicaset-controller"), false},
		{"a tenant's status", "", request(object, object, "pods", "status", admission.Update, "system:serviceaccount:tenant:a"), false},
		{"a tenant's endpoints", "", request(object, object, "endpointslices", "", admission.Update, "me"), false},
		{"Fail with an Event", "Fail", request(event, nil, "events", "", admission.Create, "me"), true},
		{"Fail without a namespace", "Fail", admission.NewAttributesRecord(node, nil, node.GroupVersionKind(), "", "a",
			corev1.SchemeGroupVersion.WithResource("nodes"), "", admission.Create, nil, false, &user.DefaultInfo{Name: "me"}), true},
	} {
		p := pluginstest.New(plugins.Admission, "a", plugins.Settings{FailurePolicy: tc.policy})
		chain := validatingChain(t, options(pluginstest.NewSet(p)), nil)
		err := chain.Validate(t.Context(), tc.from, interfaces)
		if tc.passes != (err == nil) || err != nil && !strings.Contains(err.Error(), "plugin a is not running") {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// TestInvalidUTF8: what the API took from a client that speaks protobuf goes through a review, in every encoding.
func TestInvalidUTF8(t *testing.T) {
	for _, encoding := range []pluginv1.Encoding{pluginv1.Encoding_ENCODING_JSON, pluginv1.Encoding_ENCODING_PROTOBUF, pluginv1.Encoding_ENCODING_PROTOBUF_OBJECTS} {
		p := serve(t, "a", validates(func(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
			seen, err := sdk.Object[corev1.Pod](r.Object)
			if err != nil {
				return sdk.Fail(err)
			}
			return sdk.Deny("seen " + strings.ToValidUTF8(seen.Annotations["note"], "\uFFFD"))
		}), plugins.Settings{})
		p.Description().GetAdmission().Encodings = []pluginv1.Encoding{encoding}
		chain := validatingChain(t, options(pluginstest.NewSet(p)), nil)
		from := pod(nil)
		from.GetObject().(*corev1.Pod).Annotations = map[string]string{"note": "a\xff"}
		if err := chain.Validate(t.Context(), from, interfaces); err == nil || !strings.Contains(err.Error(), "seen a\uFFFD") {
			t.Errorf("%v: %v", encoding, err)
		}
	}
}

// TestChanges: what plugins come, go and describe takes effect while the apiserver runs; where nothing changed, hooks
// stay the same.
func TestChanges(t *testing.T) {
	denier, set := serve(t, "b", validates(denies), plugins.Settings{}), pluginstest.NewSet()
	s := newSource(options(set), func(r ruleset) []webhook.WebhookAccessor { return r.validating })
	go s.RunReloadLoop(t.Context())
	eventually(t, "a subscriber", set.Subscribed)
	set.Replace(denier)
	one := s.Webhooks()
	if len(one) != 1 || one[0].GetName() != "hook.b.plugin.kubelith.io" || one[0].GetUID() != "plugin/validating/hook.b.plugin.kubelith.io" {
		t.Fatalf("%v", one)
	}
	set.Replace(denier)
	if again := s.Webhooks(); &again[0] != &one[0] {
		t.Error("another slice though nothing changed")
	}
	first := serve(t, "a", validates(denies), plugins.Settings{})
	set.Replace(first, denier)
	if two := s.Webhooks(); len(two) != 2 || two[0].GetName() != "hook.a.plugin.kubelith.io" || two[1] != one[0] {
		t.Errorf("%v", two)
	}
	first.SetDescription(serve(t, "a", validates(denies, func(w *registrationv1.ValidatingWebhook) { w.Name = "renamed" }), plugins.Settings{}).Description())
	set.Replace(first, denier)
	if two := s.Webhooks(); two[0].GetName() != "renamed.a.plugin.kubelith.io" || two[1] != one[0] {
		t.Errorf("after another description: %v", two)
	}
	first.SetDescription(&pluginv1.Description{})
	set.Replace(first, denier)
	if two := s.Webhooks(); len(two) != 2 || two[0].GetName() != "renamed.a.plugin.kubelith.io" {
		t.Errorf("after an invalid description: %v", two)
	}
	first.SetDescription(one[0].(*accessor).plugin.Description())
	first.SetSettings(plugins.Settings{FailurePolicy: "Ignore", Timeout: 1500 * time.Millisecond})
	set.Replace(first)
	if now := s.Webhooks(); len(now) != 1 || *now[0].GetFailurePolicy() != registrationv1.Ignore || *now[0].GetTimeoutSeconds() != 2 {
		t.Errorf("after other settings: %v", now)
	}
	set.Replace()
	if now := s.Webhooks(); len(now) != 0 {
		t.Errorf("without plugins: %v", now)
	}
}

// TestValidate: a description that upstream would refuse is refused with the field as the plugin's author wrote it.
func TestValidate(t *testing.T) {
	describe := func(mutating, validating []string) *pluginv1.Description {
		a := &pluginv1.AdmissionDescription{}
		for _, text := range mutating {
			a.Mutating = append(a.Mutating, []byte(text))
		}
		for _, text := range validating {
			a.Validating = append(a.Validating, []byte(text))
		}
		return &pluginv1.Description{Kind: &pluginv1.Description_Admission{Admission: a}}
	}
	const rules = `"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}]`
	for _, tc := range []struct {
		name string
		d    *pluginv1.Description
		says string // empty: it is fine
	}{
		{"fine", describe([]string{`{"name":"a","sideEffects":"None",` + rules + `}`}, []string{`{"name":"a","sideEffects":"None",` + rules + `}`}), ""},
		{"another kind", &pluginv1.Description{}, "another kind of plugin"},
		{"nothing", describe(nil, nil), "no hook"},
		{"no JSON", describe([]string{`{`}, nil), "mutating[0]: unexpected EOF"},
		{"an unknown field", describe(nil, []string{`{"name":"a","namespaceSelektor":{}}`}), `validating[0]: json: unknown field "namespaceSelektor"`},
		{"a client", describe([]string{`{"name":"a","clientConfig":{"url":"https://x"}}`}, nil), "mutating[0]: clientConfig: leave it out"},
		{"another version", describe([]string{`{"name":"a","admissionReviewVersions":["v1beta1"]}`}, nil), "v1beta1 comes first"},
		{"no name", describe([]string{`{"sideEffects":"None",` + rules + `}`}, nil), "mutating[0].name"},
		{"no side effects", describe([]string{`{"name":"a",` + rules + `}`}, nil), "mutating[0].sideEffects"},
		{"no operations", describe(nil, []string{`{"name":"a","sideEffects":"None","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}]}`}), "validating[0].rules[0].operations"},
		{"bad CEL", describe(nil, []string{`{"name":"a","sideEffects":"None","matchConditions":[{"name":"x","expression":"object."}],` + rules + `}`}), "validating[0].matchConditions[0].expression"},
		{"a timeout of a minute", describe(nil, []string{`{"name":"a","sideEffects":"None","timeoutSeconds":60,` + rules + `}`}), "validating[0].timeoutSeconds"},
		{"two of a name", describe(nil, []string{`{"name":"a","sideEffects":"None",` + rules + `}`, `{"name":"a","sideEffects":"None",` + rules + `}`}), "validating[1].name"},
	} {
		err := Validate("x", tc.d)
		if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: want %q: %v", tc.name, tc.says, err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than a line: %v", tc.name, err)
		}
	}
}

// TestRegistry: our registry has what upstream's has.
func TestRegistry(t *testing.T) {
	registry, err := Registry(options(pluginstest.NewSet()))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := registry.Registered(), kubeoptions.NewAdmissionOptions().GenericAdmission.Plugins.Registered(); !slices.Equal(got, want) {
		t.Errorf("%v, upstream has %v", got, want)
	}
}

// TestOwnManifests: webhooks of a directory that the user configured stand behind those of plugins.
func TestOwnManifests(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: WebhookAdmissionConfiguration\nkubeConfigFile: \"\"\nstaticManifestsDir: " + dir + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer config.Close()
	p, err := newValidating(config, options(pluginstest.NewSet(serve(t, "a", validates(denies), plugins.Settings{}))))
	if err != nil {
		t.Fatal(err)
	}
	loaded := ""
	p.SetManifestLoaders(&initializer.ManifestLoaders{LoadValidatingWebhookManifests: func(dir string) ([]*registrationv1.ValidatingWebhookConfiguration, string, error) {
		loaded = dir
		return []*registrationv1.ValidatingWebhookConfiguration{{ObjectMeta: metav1.ObjectMeta{Name: "x.static.k8s.io"},
			Webhooks: []registrationv1.ValidatingWebhook{{Name: "theirs.example.com"}}}}, "hash", nil
	}})
	source, err := p.source("/")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, w := range source.Webhooks() {
		names = append(names, w.GetName())
	}
	if loaded != dir || !slices.Equal(names, []string{"hook.a.plugin.kubelith.io", "theirs.example.com"}) {
		t.Errorf("%s, %v", loaded, names)
	}
}
