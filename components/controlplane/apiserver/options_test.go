package apiserver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/server/flagz"

	"kubelith.io/kubelith/base/pki"
)

func build(args ...string) (*Server, error) {
	return New(Options{BindAddress: "0.0.0.0", Port: 6443, AdvertiseAddress: "192.0.2.1", ServiceCIDRs: []string{"10.43.0.0/16"}, PKI: &pki.Bundle{}, Args: args})
}

// A user's admission plugins do not replace the one that keeps a node to its own objects; only disabling it does.
func TestNodeRestrictionStays(t *testing.T) {
	for arg, want := range map[string][]string{
		"event-ttl=1h": {"NodeRestriction", "Initializers"},
		"enable-admission-plugins=AlwaysPullImages":               {"AlwaysPullImages", "NodeRestriction", "Initializers"},
		"enable-admission-plugins=NodeRestriction,EventRateLimit": {"NodeRestriction", "EventRateLimit", "Initializers"},
		"disable-admission-plugins=NodeRestriction":               {"Initializers"},
		"disable-admission-plugins=NodeRestriction,Initializers":  nil,
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

// A password file is checked before the start; its flag is one among upstream's.
func TestPasswordFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.csv")
	for text, want := range map[string]string{
		"secret,alice,1\n":         "",
		"secret,alice,1\nsecret\n": "--apiserver-arg basic-auth-file: " + path + ": line 2: ",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := build("basic-auth-file=" + path)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil && (s.passwords == nil || s.Upstream().Flagz.(flagz.NamedFlagSetsReader).FlagSets.FlagSets["authentication"].Lookup("basic-auth-file").Value.String() != path) {
			t.Errorf("%q: not in use, or not among the flags", text)
		}
	}
	if s, err := build(); err != nil || s.passwords != nil {
		t.Errorf("without the flag: %v, %v", s.passwords, err)
	}
	if _, err := build("basic-auth-fiel=" + path); err == nil || !strings.Contains(err.Error(), `did you mean "basic-auth-file"?`) {
		t.Error(err)
	}
}
