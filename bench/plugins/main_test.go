package plugins

import (
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// TestMain: servers run in the harness's sandboxes.
func TestMain(m *testing.M) { harness.Main(m) }
