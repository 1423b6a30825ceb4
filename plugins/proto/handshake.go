// Package proto holds what host and plugin agree on before the first call. The
// protocols are in the folders below, one per package and version.
package proto

import "github.com/hashicorp/go-plugin"

// Version is the protocol number in go-plugin's handshake: the set of the versions of the
// packages below. Additions do not change it.
const Version = 1

// Name is the one go-plugin plugin that a process serves; its gRPC services depend on the kind.
const Name = "kubelith"

// Handshake tells a plugin that kubelith started it, and a person who did that it is no program to be started by hand.
var Handshake = plugin.HandshakeConfig{
	MagicCookieKey:   "KUBELITH_PLUGIN",
	MagicCookieValue: "b4c1f7d2-started-by-kubelith",
}

// KubeconfigVariable is the variable of a plugin's environment that names its kubeconfig.
const KubeconfigVariable = "KUBELITH_KUBECONFIG"

// Limits of one message, in bytes. A plugin may answer many calls at once, and what it answers is in the server's memory: the limit of
// answers is gRPC's own default, which CSI drivers keep to, and holds the patch of an object as large as etcd takes.
const (
	MaxRequestSize  = 32 << 20
	MaxResponseSize = 4 << 20
)
