package host

import (
	"testing"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
)

// FuzzStoredDescription: whatever is in the file of a plugin's description is the description, or none.
func FuzzStoredDescription(f *testing.F) {
	f.Add([]byte(`{"kind":"admission","description":{"version":"1","admission":{}}}`))
	f.Add([]byte(`{"kind":"storage","description":{"admission":{}}}`))
	f.Add([]byte(``))
	f.Add(make([]byte, 512)) // after a power cut
	f.Fuzz(func(t *testing.T, content []byte) {
		spec := &process.Spec{Name: "x", Kind: plugins.Admission}
		if d, err := (descriptions{}).parse(spec, content); err == nil && d.GetAdmission() == nil {
			t.Errorf("%v is accepted as an admission plugin", d)
		}
	})
}
