// Package sdk turns a few Go functions into a Kubelith plugin: main calls ServeAdmission, ServeScheduling or
// ServeStorage, which serve until the host stops the plugin.
//
// The package does the handshake, the encodings and the log. A plugin imports this package only, in addition to the
// Kubernetes types that it reads. docs/plugins.md shows how to write one, docs/plugin-protocol.md describes the
// protocol.
package sdk
