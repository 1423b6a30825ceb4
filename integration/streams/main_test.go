// Package streams tests what flows between a user and a container: logs, exec, attach, port-forward and cp,
// through the bundled kubectl and through client-go.
package streams

import (
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

var cluster = harness.NewShared(harness.Options{})

func TestMain(m *testing.M) { harness.Main(m, cluster) }
