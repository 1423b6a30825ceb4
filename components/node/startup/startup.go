// Package startup keeps the garbage collector from running while the packages of this executable are initialised: they
// allocate some 20 MB that stay, and the collector would scan them several times before main begins. That is a third of
// the time that `kubelith kubectl` needs to start.
//
// Go's order is fixed (Go specification, "Program initialization"): the first package by import path whose imports are
// all initialised is next. This one imports nothing of note, so that it comes before all packages that need
// sigs.k8s.io, which is most of Kubernetes.
package startup

import "runtime/debug"

// percent is the value of GOGC.
var percent = debug.SetGCPercent(-1)

// Done restores the garbage collector: main calls it first.
func Done() { debug.SetGCPercent(percent) }
