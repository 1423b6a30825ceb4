// The plugin everything reviews every request, allows it, and warns that it was there.
package main

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"

	"kubelith.io/kubelith/plugins/sdk"
)

func main() {
	sdk.ServeAdmission(sdk.Admission{Version: "1", Validating: []sdk.ValidatingHook{{
		Webhook: registrationv1.ValidatingWebhook{Name: "all", Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{registrationv1.OperationAll},
			Rule:       registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
		}}},
		Review: func(context.Context, *admissionv1.AdmissionRequest) sdk.Response {
			response := sdk.Allow()
			response.Warnings = []string{"everything was here"}
			return response
		},
	}}})
}
