// Reviewer is the same validating logic as a plugin and as an HTTPS webhook, for the benchmark of admission.
//
//	reviewer                      the plugin; Kubelith starts it
//	reviewer webhook CERT KEY     the webhook, on a port of 127.0.0.1 that it writes to its standard output
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/plugins/sdk"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "webhook" {
		log.Fatal(webhook(os.Args[2], os.Args[3]))
	}
	sdk.ServeAdmission(sdk.Admission{Version: "1", ProtobufObjects: true, Validating: []sdk.ValidatingHook{{
		Webhook: registrationv1.ValidatingWebhook{Name: "images", Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{registrationv1.Create},
			Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
		Review: review,
	}}})
}

// verdict is the logic: images come from one registry. Empty: fine.
func verdict(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		if !strings.HasPrefix(c.Image, "registry.example.com/") {
			return "container " + c.Name + " is not from registry.example.com"
		}
	}
	return ""
}

func review(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
	pod, err := sdk.Object[corev1.Pod](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	if text := verdict(pod); text != "" {
		return sdk.Deny(text)
	}
	return sdk.Allow()
}

// webhook serves the logic as authors of webhooks do, over HTTP/2 with connections that stay.
func webhook(cert, key string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.ServeTLS(listener, http.HandlerFunc(answer), cert, key)
}

func answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil || review.Request == nil {
		http.Error(w, "no AdmissionReview", http.StatusBadRequest)
		return
	}
	var pod corev1.Pod
	if err := json.Unmarshal(review.Request.Object.Raw, &pod); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if text := verdict(&pod); text != "" {
		response.Allowed, response.Result = false, &metav1.Status{Message: text, Code: http.StatusForbidden}
	}
	review.Request, review.Response = nil, response
	out, err := json.Marshal(review)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(out)
}
