// Nothing is an admission plugin that gets no requests: its hook is for objects that no client creates. Its first
// argument is its version.
package main

import (
	"context"
	"os"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"kubelith.io/kubelith/plugins/sdk"
)

func main() {
	version := "1"
	if len(os.Args) > 1 {
		version = os.Args[1]
	}
	settings := struct {
		Text string `json:"text"`
	}{}
	sdk.ServeAdmission(sdk.Admission{
		Version:   version,
		Configure: func(c sdk.Config) error { return c.Decode(&settings) },
		Validating: []sdk.ValidatingHook{{
			Webhook: admissionregistrationv1.ValidatingWebhook{
				Name: "nothing",
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"nothing.example.com"}, APIVersions: []string{"v1"}, Resources: []string{"nothings"}},
				}},
			},
			Review: func(context.Context, *admissionv1.AdmissionRequest) sdk.Response { return sdk.Allow() },
		}},
	})
}
