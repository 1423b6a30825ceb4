package compare

import (
	"os"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(floorEnv); spec != "" {
		floorMain(spec) // the same executable inside a sandbox; never returns
	}
	harness.Main(m)
}
