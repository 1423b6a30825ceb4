// Package node wires a server: it prepares the host's side (data directory,
// payload, certificates, feature gates), builds every component with what it
// needs, and runs them as one Group. It is the only package that imports all
// the others.
//
// server.go is the table of contents: read it top to bottom. prepare.go is what
// happens before a component exists; progress.go and systemd.go say how far the
// start is to a person and to systemd.
package node
