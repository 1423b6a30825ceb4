package main

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

func TestShortSecrets(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		secret       corev1.Secret
		says         string // empty: allowed
	}{
		{"long", "", corev1.Secret{Data: map[string][]byte{"a": []byte(strings.Repeat("x", 20))}}, ""},
		{"short", "", corev1.Secret{Data: map[string][]byte{"a": []byte(strings.Repeat("x", 20)), "b": []byte("abc")}}, "b has 3 characters: give it 20 or more"},
		{"long enough for the operator", `{"length":3}`, corev1.Secret{Data: map[string][]byte{"b": []byte("abc")}}, ""},
		{"of another type", "", corev1.Secret{Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{"username": []byte("me")}}, ""},
		{"empty", "", corev1.Secret{}, ""},
	} {
		conn := sdktest.Connect(t, plugin().Register)
		if _, err := sdktest.Describe(t, conn, "short-secrets", tc.config); err != nil {
			t.Fatal(err)
		}
		r := sdktest.Review(t, conn, "length", admissionv1.AdmissionRequest{}, tc.secret, nil)
		if r.Allowed != (tc.says == "") || !r.Allowed && r.Result.Message != tc.says {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
}
