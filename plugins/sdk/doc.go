// Package sdk makes a plugin of Kubelith out of a few Go functions: main calls
// ServeAdmission, ServeScheduling or ServeStorage, which serve until the host says to end.
//
// It does the handshake, the encodings and the log; rules, verdicts and
// volumes are the plugin's. A plugin imports this package only, besides the Kubernetes types that it reads.
// docs/plugins.md shows how to write one, docs/plugin-protocol.md what goes over the wire.
package sdk
