// Package crashes confines the failures for which Go and upstream would end the process. A panic in a goroutine that a
// component has started, and an exit that upstream requests from klog, end that component where it may be restarted
// (CatchPanics, EndInOrder); where it may not, such an exit stops the process in order. When a component crashes the
// process repeatedly anyway, the next start leaves it out for a while (BreakLoops).
//
// Each function sets state of the whole process: call it once, before a component runs. The reasons are in
// docs/adr/022-restart-in-place.md.
package crashes
