// The shim of pods: upstream's, see package shim.
package main

import (
	"context"

	"kubelith.io/kubelith/runtime/shim"
)

func main() { shim.Run(context.Background()) }
