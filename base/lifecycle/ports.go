package lifecycle

// Port is a port of the host that a component listens on.
type Port struct {
	Network string // tcp or udp
	Address string // empty: all addresses
	Number  int
	Setting string // the flag that sets another; empty: there is none
}

// Listener is for components that listen on ports of the host.
type Listener interface {
	// Ports returns the ports as known before Run, for a check that they are free.
	Ports() []Port
}
