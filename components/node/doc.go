// Package node wires a server: it prepares the host (data directory, payload, certificates, feature gates), builds
// every component with what it needs, and runs them as one Group. It is the only package that imports all the others.
//
// controlplane.go, cluster.go and worker.go are the table of contents: one function for each scope. server.go, agent.go
// and witness.go are the three kinds of process, prepare.go runs before any component exists, and run.go runs the
// components.
//
// What surrounds the components of a process is in packages below this one: progress reports a start to the user and to
// systemd, memory sets the pace of the garbage collector, crashes confines panics, addresswatch and noproxy look after
// the node's addresses, and faults is for tests.
package node
