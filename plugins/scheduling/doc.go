// Package scheduling makes scheduling plugins part of kube-scheduler: each is a plugin of upstream's scheduler framework
// that asks the plugin's process once per pod to filter all nodes (in PreFilter) and once to score those that passed (in PreScore).
//
// What goes over the wire is small: the process is told of nodes when they change (mirror.go). Preemption and nominated pods
// try nodes that do not exist as they are tried: those are asked about one by one (verdicts.go). A process that is missing, slow or wrong costs a pod the
// plugin's deadline at most, and its failure policy decides what follows (remote.go).
//
// The set of plugins and their weights are those of the scheduler's start; processes come and go while it runs.
package scheduling
