// Package scheduler tests where pods go. Its nodes are objects without machines: nothing runs.
package scheduler

import (
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
