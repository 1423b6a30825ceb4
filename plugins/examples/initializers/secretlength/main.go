// The initializer secretlength.example.com refuses new Secrets that have a value of less than 20 characters.
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/plugins/sdk/initializer"
)

func main() {
	initializer.Main(initializer.For("secretlength.example.com", corev1.SchemeGroupVersion.WithResource("secrets"), check))
}

func check(_ context.Context, secret *corev1.Secret) error {
	for key, value := range secret.Data {
		if n := len([]rune(string(value))); n < 20 {
			return initializer.Refuse("%s has %d characters: a Secret needs 20", key, n)
		}
	}
	return nil
}
