// The plugin short-secrets refuses Secrets with values under 20 characters, which are easy to guess. `config: {length:
// 12}` sets another length.
package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/plugins/sdk"
)

func main() { sdk.ServeAdmission(plugin()) }

func plugin() sdk.Admission {
	settings := struct {
		Length int `json:"length"`
	}{20}
	return sdk.Admission{
		Version: "1", ProtobufObjects: true,
		Configure: func(c sdk.Config) error { return c.Decode(&settings) },
		Validating: []sdk.ValidatingHook{{
			Webhook: registrationv1.ValidatingWebhook{Name: "length", Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}},
			}}},
			Review: func(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
				return check(r, settings.Length)
			},
		}},
	}
}

func check(r *admissionv1.AdmissionRequest, length int) sdk.Response {
	secret, err := sdk.Object[corev1.Secret](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	if secret.Type != corev1.SecretTypeOpaque && secret.Type != "" {
		return sdk.Allow() // other types have values that are short by design
	}
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		if n := len(secret.Data[key]); n < length {
			return sdk.Deny(fmt.Sprintf("%s has %d characters: give it %d or more", key, n, length))
		}
	}
	return sdk.Allow()
}
