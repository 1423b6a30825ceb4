package admission

import (
	"testing"
	"time"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/pluginstest"
	"kubelith.io/kubelith/plugins/sdk"
)

// serve runs a plugin of the SDK in memory.
func serve(t testing.TB, name string, a sdk.Admission, settings plugins.Settings) *pluginstest.Plugin {
	t.Helper()
	p := pluginstest.New(plugins.Admission, name, settings)
	p.Serve(t, a.Register)
	p.Introduce(t)
	if err := Validate(name, p.Description()); err != nil {
		t.Fatal(err)
	}
	return p
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
