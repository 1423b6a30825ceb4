// Package log tests what an operator reads: that a healthy cluster warns of nothing, that a log without a reader stops
// nothing, and that no line is written over and over.
package log

import (
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
