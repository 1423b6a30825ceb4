package hostports

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// sockets asks the kernel for the local addresses of sockets in a state, in this thread's network namespace. To read
// /proc/net/tcp instead takes milliseconds also on an idle host: behind the listening sockets, the kernel walks through
// the table of connections, whose size follows the machine's memory. It returns an error where the kernel lacks the
// family, or sock_diag for the protocol.
//
// Source: sock_diag(7), struct inet_diag_req_v2 and struct inet_diag_msg.
func sockets(family, protocol, state uint8) (addresses []netip.AddrPort, err error) {
	const (
		requestSize = 56
		messageSize = 72
	)
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	request := make([]byte, requestSize)
	request[0], request[1] = family, protocol
	binary.NativeEndian.PutUint32(request[4:], 1<<state)
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump}, Data: request,
	})
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		if len(a.Data) < messageSize {
			return nil, fmt.Errorf("the kernel describes a socket in %d bytes", len(a.Data))
		}
		ip := netip.AddrFrom4([4]byte(a.Data[8:12]))
		if a.Data[0] == unix.AF_INET6 {
			ip = netip.AddrFrom16([16]byte(a.Data[8:24])).Unmap()
		}
		addresses = append(addresses, netip.AddrPortFrom(ip, binary.BigEndian.Uint16(a.Data[4:])))
	}
	return addresses, nil
}
