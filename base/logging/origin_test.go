package logging

import (
	"path/filepath"
	"slices"
	"testing"

	"kubelith.io/kubelith/base/config"
)

// TestOurOrigins: a line that is logged in the package of a component gets a name that --log-level knows.
func TestOurOrigins(t *testing.T) {
	var dirs []string
	for _, scope := range []string{"controlplane", "cluster", "worker"} {
		found, err := filepath.Glob("../../components/" + scope + "/*")
		if err != nil || len(found) < 5 {
			t.Fatalf("%d packages of scope %s, %v", len(found), scope, err)
		}
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		rel, _ := filepath.Rel("../../components", dir)
		name := componentOf(ourComponents + rel + ".(*Server).Run")
		if !slices.ContainsFunc(config.Components(), func(c config.Component) bool { return c.Name == name && c.Kind != config.Builtin }) {
			t.Errorf("components/%s logs as %q, which --log-level does not know", rel, name)
		}
	}
}
