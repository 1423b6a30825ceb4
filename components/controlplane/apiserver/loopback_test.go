package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/base/client"
)

// reviews is a path of the apiserver under test that answers as a webhook.
const reviews = "/test-review"

// review refuses everything, and returns who called it.
func review(w http.ResponseWriter, r *http.Request) {
	var in admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	caller := "nobody"
	if user, ok := genericapirequest.UserFrom(r.Context()); ok {
		caller = user.GetName()
	}
	in.Response = &admissionv1.AdmissionResponse{UID: in.Request.UID, Result: &metav1.Status{Message: "asked by " + caller}}
	in.Request = nil
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(in)
}

// TestWebhookAtTheAPI: a webhook may name the Service default/kubernetes, as those of aggregated API servers do, with
// the API's well-known CA. It is called in memory, as the apiserver itself.
func TestWebhookAtTheAPI(t *testing.T) {
	ns := namespace(t, "webhook-at-the-api")
	ctx, cs := t.Context(), admin(t)
	ca, err := os.ReadFile(shared.pki.ClusterCA.Cert)
	if err != nil {
		t.Fatal(err)
	}
	hooks := cs.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = hooks.Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "at-the-api.example.com", Rules: configMaps, NamespaceSelector: only(ns), AdmissionReviewVersions: []string{"v1"},
			FailurePolicy: ptr.To(registrationv1.Fail), SideEffects: ptr.To(registrationv1.SideEffectClassNone),
			ClientConfig: registrationv1.WebhookClientConfig{CABundle: ca,
				Service: &registrationv1.ServiceReference{Namespace: "default", Name: "kubernetes", Path: ptr.To(reviews)}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hooks.Delete(context.Background(), ns, metav1.DeleteOptions{}) })
	eventually(t, "be refused by the webhook", func() error {
		_, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "asked by "+client.APIServer) {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
}
