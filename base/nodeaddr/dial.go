package nodeaddr

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// Dialer connects to kubelets, and to no address that cannot be a kubelet's: a Node's status must not make the server
// call its own loopback, Services or pods. The address is checked when it is dialled: a name may resolve to any
// address.
func (r Rules) Dialer() *net.Dialer {
	return &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		return r.refuse(address)
	}}
}

// refuse returns why an address must not be dialled.
func (r Rules) refuse(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := at.Addr().Unmap()
	switch {
	case !ip.IsGlobalUnicast() || slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return fmt.Errorf("%s is not a node's address", ip)
	case at.Port() == r.APIPort && slices.Contains(r.API, ip):
		return fmt.Errorf("%s is the API server, not a kubelet", at)
	}
	return nil
}
