package apiserver

import (
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/client"
)

// TestComponentsAreRanked: the API ranks requests of our components with those of the control plane, but not a tenant's
// or those of a plugin with its own identity.
func TestComponentsAreRanked(t *testing.T) {
	ctx, c := t.Context(), serve(t)
	schemaOf := func(user string) (string, error) {
		var uid string
		cfg := c.Config(user)
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				if err == nil {
					uid = resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID")
				}
				return resp, err
			})
		})
		_, _ = clientFor(t, cfg).CoreV1().Services("").List(ctx, metav1.ListOptions{}) // whether it may does not matter
		all, err := admin(t).FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, s := range all.Items {
			if string(s.UID) == uid {
				return s.Name + " " + s.Spec.PriorityLevelConfiguration.Name, nil
			}
		}
		return "", fmt.Errorf("no flow schema has the uid %q", uid)
	}
	for user, want := range map[string]string{
		client.DNS: "kubelith-components workload-high", client.Token: "kubelith-components workload-high", client.Approver: "kubelith-components workload-high",
		client.ServiceLB: "kubelith-components workload-high", client.Storage: "kubelith-components workload-high",
		client.CARotation: "kubelith-components workload-high", client.Servers: "kubelith-components workload-high",
		"alice": "global-default global-default", client.PluginPrefix + "x": "global-default global-default",
	} {
		eventually(t, user, func() error { // flow control follows its objects with informers
			got, err := schemaOf(user)
			if err == nil && got != want {
				err = fmt.Errorf("%s, want %s", got, want)
			}
			return err
		})
	}
}
