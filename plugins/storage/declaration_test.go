package storage

import (
	"strings"
	"testing"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// TestValidate: what cannot be a driver is refused, with what is wrong.
func TestValidate(t *testing.T) {
	good := `{"metadata":{"name":"a.example.com"},"spec":{"podInfoOnMount":true}}`
	for _, tc := range []struct {
		name, driver, class, wrong string
	}{
		{"good", good, `{"metadata":{"name":"c"},"provisioner":"a.example.com"}`, ""},
		{"no JSON", "{", "", "csi_driver: unexpected EOF"},
		{"unknown field", `{"spec":{"attachRequire":true}}`, "", `csi_driver: json: unknown field "attachRequire"`},
		{"no name", `{}`, "", `csi_driver: "" is not a valid driver name`},
		{"a path for a name", `{"metadata":{"name":"../../etc"}}`, "", `csi_driver: "../../etc" is not a valid driver name`},
		{"a name of 64 characters", `{"metadata":{"name":"` + strings.Repeat("a", 64) + `"}}`, "", "is not a valid driver name"},
		{"class of another", good, `{"metadata":{"name":"c"},"provisioner":"b"}`, "storage_classes[0]: it needs a name, and the provisioner a.example.com"},
		{"class without a name", good, `{"provisioner":"a.example.com"}`, "storage_classes[0]: it needs a name"},
	} {
		s := &pluginv1.StorageDescription{CsiDriver: []byte(tc.driver)}
		if tc.class != "" {
			s.StorageClasses = [][]byte{[]byte(tc.class)}
		}
		err := Validate("p", &pluginv1.Description{Kind: &pluginv1.Description_Storage{Storage: s}})
		if (tc.wrong == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.wrong) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.wrong)
		}
	}
	if err := Validate("p", &pluginv1.Description{}); err == nil {
		t.Error("a plugin of another kind is a storage plugin")
	}
}
