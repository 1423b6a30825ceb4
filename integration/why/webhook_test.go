package why

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// webhookAddress is where the API server finds the tests' admission webhook.
const webhookAddress = "127.0.0.1:5001"

// serveWebhook serves an admission webhook inside the sandbox, which refuses what is sent to /deny and allows the rest.
// It returns the certificate for caBundle.
func serveWebhook(t *testing.T, s *harness.Server) string {
	t.Helper()
	l, err := s.Listen(webhookAddress)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: r.URL.Path != "/deny"}
		if !review.Response.Allowed {
			review.Response.Result = &metav1.Status{Message: "pods need an owner"}
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // a client that is gone
	}))
	server.Listener.Close()
	server.Listener = l
	server.StartTLS()
	t.Cleanup(server.Close)
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}
