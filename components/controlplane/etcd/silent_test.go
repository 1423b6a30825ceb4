package etcd

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProbe: both ends of a connection with a member are probed, and no other connection.
func TestProbe(t *testing.T) {
	for _, network := range []string{"127.0.0.1:0", "[::1]:0"} {
		member, other := connect(t, network), connect(t, network)
		probe(map[netip.AddrPort]bool{member.address: true})
		for what, c := range map[string]struct {
			conn net.Conn
			want bool
		}{
			"to a member":          {member.dialed, true},
			"from another member":  {member.accepted, true},
			"to another program":   {other.dialed, false},
			"from another program": {other.accepted, false},
		} {
			idle, every, count := option(t, c.conn, unix.TCP_KEEPIDLE), option(t, c.conn, unix.TCP_KEEPINTVL), option(t, c.conn, unix.TCP_KEEPCNT)
			if got := idle == 2 && every == 1 && count == 3; got != c.want {
				t.Errorf("%s, connection %s: probed %d times after %d s, every %d s", network, what, count, idle, every)
			}
		}
	}
}

type connection struct {
	address          netip.AddrPort // that was dialed
	dialed, accepted net.Conn
}

func connect(t *testing.T, address string) connection {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip(err) // a machine without IPv6
	}
	defer l.Close()
	c := connection{address: netip.MustParseAddrPort(l.Addr().String())}
	if c.dialed, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.dialed.Close() })
	if c.accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.accepted.Close() })
	return c
}

func option(t *testing.T, c net.Conn, name int) (value int) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if controlled := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) }); controlled != nil || err != nil {
		t.Fatal(controlled, err)
	}
	return value
}
