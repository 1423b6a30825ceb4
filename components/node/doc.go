// Package node wires a server: it prepares the host (data directory, payload, certificates, feature gates), builds
// every component with what it needs, and runs them as one Group. It is the only package that imports all the others.
//
// controlplane.go, cluster.go and worker.go are the table of contents: one function for each scope. prepare.go runs
// before any component exists; progress.go and systemd.go report the progress of a start to the user and to systemd.
package node
