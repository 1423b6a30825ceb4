package apiserver

import (
	"slices"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/pki"
)

func build(args ...string) (*Server, error) {
	return New(Options{BindAddress: "0.0.0.0", Port: 6443, AdvertiseAddress: "192.0.2.1", ServiceCIDRs: []string{"10.43.0.0/16"}, PKI: &pki.Bundle{}, Args: args})
}

// A user's admission plugins do not replace the one that keeps a node to its own objects; only disabling it does.
func TestNodeRestrictionStays(t *testing.T) {
	for arg, want := range map[string][]string{
		"event-ttl=1h": {"NodeRestriction"},
		"enable-admission-plugins=AlwaysPullImages":               {"AlwaysPullImages", "NodeRestriction"},
		"enable-admission-plugins=NodeRestriction,EventRateLimit": {"NodeRestriction", "EventRateLimit"},
		"disable-admission-plugins=NodeRestriction":               nil,
	} {
		s, err := build(arg)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Upstream().Admission.GenericAdmission.EnablePlugins; !slices.Equal(got, want) {
			t.Errorf("%s: %v are enabled, want %v", arg, got, want)
		}
	}
}

// Without Node or RBAC our own components would be denied everything.
func TestAuthorizationModes(t *testing.T) {
	for arg, want := range map[string]string{
		"authorization-mode=Node,RBAC,ABAC": "",
		"authorization-mode=RBAC":           "Node is missing",
		"authorization-mode=AlwaysAllow":    "Node is missing",
		"authorization-mode=Node,ABAC":      "RBAC is missing",
	} {
		_, err := build(arg)
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", arg, err, want)
		}
	}
}
