package harness

import "kubelith.io/kubelith/host/sandbox"

// Options describe one server. The zero value is a server with the product's defaults.
type Options struct {
	// Args are further arguments of `kubelith server`.
	Args []string
	// ConfigYAML is written to /etc/kubelith/config.yaml and passed with --config.
	ConfigYAML string
	// Env is added to the server's environment, as KEY=value.
	Env []string
	// Disable names components to switch off.
	Disable []string
	// NoWait makes Start return without waiting for the node to be Ready.
	NoWait bool
	// NoTestImage leaves <data-dir>/agent/images/ empty.
	NoTestImage bool
	// IPv6 gives the veth pair fd00:123:N::1 and fd00:123:N::2 as well.
	IPv6 bool
	// Network joins the sandbox to others; nil: to the host alone.
	Network *sandbox.Network
	// NodeName is passed with --node-name. Empty: node-INDEX on a Network, else the product's default, the host's name.
	NodeName string
	// Agent makes the server an agent of another one.
	Agent *AgentOptions
	// Panics means that the test makes the server panic: such lines of its log are no defect.
	Panics bool
	// Prepare runs when the sandbox exists, before the server starts: write files with s.Path.
	Prepare func(s *Server) error
}
