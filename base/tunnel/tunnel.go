// Package tunnel carries connections from a server to an agent that the server cannot reach, over a connection that the
// agent has opened to the API.
//
//	agent                                              server
//	GET Path, Upgrade: Protocol  -------------------->  (authenticated as the node)
//	Serve  <============== HTTP/2, reversed ==========  Open -> Session
//	dials ADDRESS  <---- CONNECT ADDRESS -------------  Session.Dial
//
// After the upgrade the server is the client of HTTP/2 on the connection: each connection to a kubelet or a pod is a
// stream, with its own flow control, so that a reader that stops does not stop the others. Both ends send pings, and
// find out in less than a minute that the other one is gone.
//
// The package decides neither when there is a tunnel nor which connections go through it
// (components/controlplane/tunnel, components/worker/tunnel). ADR 052 has the reasons.
package tunnel

import (
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// Path is where agents ask for a tunnel.
	Path = "/kubelith/v1/tunnel"
	// Protocol is the name in the header Upgrade.
	Protocol = "kubelith-tunnel"
	// ModeHeader of a request has Auto or Always. With Auto a server that reaches the node answers 204 No Content.
	ModeHeader = "Kubelith-Tunnel"
	// HaveHeader of a request has the names of the servers that have a tunnel of this node, separated by commas: an
	// address may be that of any server. One of these answers 409 Conflict.
	HaveHeader = "Kubelith-Tunnel-Have"
	// ServerHeader of an answer has the server's name, ReasonHeader why the server does not reach the node.
	ServerHeader = "Kubelith-Server"
	ReasonHeader = "Kubelith-Tunnel-Reason"
)

// Modes of an agent: its setting "tunnel".
const (
	Auto   = "auto"   // a tunnel while the server does not reach the node
	Always = "always" // a tunnel in any case
	Never  = "never"  // none
)

// Modes returns all of them.
func Modes() []string { return []string{Auto, Always, Never} }

const (
	// pingAfter and pingTimeout: an agent that has received nothing for that long sends a ping, and ends the tunnel
	// without an answer. The server waits longer before it does the same, so that usually only one of them sends pings.
	pingAfter       = 20 * time.Second
	serverPingAfter = 30 * time.Second
	pingTimeout     = 15 * time.Second
	// toServerWindow and toNodeWindow are how many bytes of one connection wait at its end for a reader.
	// toNodeWindows is for all of them together, and as much as net/http allows: toServer has no such bound.
	toServerWindow = 512 << 10
	toNodeWindow   = 128 << 10
	toNodeWindows  = 4<<20 - 1
	// maxStreams is how many connections one tunnel carries at a time.
	maxStreams = 1000
)

// only returns HTTP/2 without TLS: the connection under it has TLS.
func only() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// watched is a connection that reports when it is closed. net/http must not see that there is a *tls.Conn in it.
type watched struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func watch(c net.Conn) *watched { return &watched{Conn: c, closed: make(chan struct{})} }

// Close implements net.Conn.
func (w *watched) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.Conn.Close()
}
