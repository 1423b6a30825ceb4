// Package proto has what host and plugin agree on before the first call. The folders below have the protocols, one per
// package and version.
package proto

import "github.com/hashicorp/go-plugin"

// Version is the protocol number in go-plugin's handshake: the set of the versions of the
// packages below. Additions do not change it.
const Version = 1

// Name is the one go-plugin plugin that a process serves; its gRPC services depend on the kind.
const Name = "kubelith"

// Handshake shows a plugin that Kubelith started it, so that it can refuse to be started by hand.
var Handshake = plugin.HandshakeConfig{
	MagicCookieKey:   "KUBELITH_PLUGIN",
	MagicCookieValue: "b4c1f7d2-started-by-kubelith",
}

// KubeconfigVariable is the variable of a plugin's environment that names its kubeconfig.
const KubeconfigVariable = "KUBELITH_KUBECONFIG"

// Limits of one message, in bytes. A plugin may answer many calls at once, and the server holds the answers in memory.
// The limit of answers is gRPC's default, which CSI drivers expect; it is enough for the patch of an object of etcd's
// maximum size.
const (
	MaxRequestSize  = 32 << 20
	MaxResponseSize = 4 << 20
)
