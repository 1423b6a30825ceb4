package apiserver

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/pluginstest"
	"kubelith.io/kubelith/plugins/sdk"
)

// reviewers are the plugins of the apiserver under test; tests come and go while it runs.
var reviewers pluginstest.Set

// install lets a plugin review until the test ends.
func install(t *testing.T, a sdk.Admission) {
	t.Helper()
	p := pluginstest.New(plugins.Admission, "test", plugins.Settings{})
	p.Serve(t, a.Register)
	p.Introduce(t)
	reviewers.Replace(p)
	t.Cleanup(func() { reviewers.Replace() })
}

// configMaps is a rule for the creation of ConfigMaps.
var configMaps = []registrationv1.RuleWithOperations{{
	Operations: []registrationv1.OperationType{registrationv1.Create},
	Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
}}

func only(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}}
}

// TestPluginBeforeWebhooks: in the real chain a plugin is called before the webhooks of the API, and again when one of
// them changed the object; the apiserver's own requests are not reviewed.
func TestPluginBeforeWebhooks(t *testing.T) {
	ns := namespace(t, "plugin-before-webhooks")
	var mu sync.Mutex
	var seen []string // labels that each reviewer saw, in order
	see := func(who string, labels map[string]string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, who+" after plugin:"+labels["plugin"]+" webhook:"+labels["webhook"])
	}
	install(t, sdk.Admission{Mutating: []sdk.MutatingHook{{
		Webhook: registrationv1.MutatingWebhook{Name: "label", Rules: configMaps, NamespaceSelector: only(ns), ReinvocationPolicy: ptr.To(registrationv1.IfNeededReinvocationPolicy)},
		Review: func(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
			object, err := sdk.Object[corev1.ConfigMap](r.Object)
			if err != nil {
				return sdk.Fail(err)
			}
			see("plugin", object.Labels)
			metav1.SetMetaDataLabel(&object.ObjectMeta, "plugin", "yes")
			return sdk.Patch(r, object)
		},
	}}})
	webhook := labelServer(t, func(labels map[string]string) { see("webhook", labels) })
	registerLabel(t, ns, webhook)
	somebody := clientFor(t, serve(t).Config("somebody", "system:masters"))
	create := func(name string) *corev1.ConfigMap {
		object, err := somebody.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	eventually(t, "the webhook is configured", func() error {
		if create("before").Labels["webhook"] == "" {
			return apierrors.NewServiceUnavailable("not called yet")
		}
		return nil
	})
	mu.Lock()
	seen = nil
	mu.Unlock()
	if labels := create("after").Labels; labels["plugin"] != "yes" || labels["webhook"] != "yes" {
		t.Errorf("labels %v", labels)
	}
	want := []string{"plugin after plugin: webhook:", "webhook after plugin:yes webhook:", "plugin after plugin:yes webhook:yes"}
	if !slices.Equal(seen, want) {
		t.Errorf("seen %q, want %q", seen, want)
	}
	own, err := admin(t).CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "own"}}, metav1.CreateOptions{})
	if err != nil || own.Labels["plugin"] != "" {
		t.Errorf("the apiserver's own request: %v, %v", own, err)
	}
}

// registerLabel lets a webhook review the ConfigMaps of a namespace.
func registerLabel(t *testing.T, ns string, webhook *httptest.Server) {
	t.Helper()
	configurations := admin(t).AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "label.example.com", Rules: configMaps, NamespaceSelector: only(ns), SideEffects: ptr.To(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registrationv1.WebhookClientConfig{URL: &webhook.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { configurations.Delete(context.Background(), ns, metav1.DeleteOptions{}) })
}

// labelServer is a webhook that adds a label.
func labelServer(t *testing.T, see func(map[string]string)) *httptest.Server {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		object, err := sdk.Object[corev1.ConfigMap](review.Request.Object)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		see(object.Labels)
		metav1.SetMetaDataLabel(&object.ObjectMeta, "webhook", "yes")
		response := sdk.Patch(review.Request, object)
		response.UID = review.Request.UID
		review.Request, review.Response = nil, &response.AdmissionResponse
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	return server
}
