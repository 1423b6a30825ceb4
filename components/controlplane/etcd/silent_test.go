package etcd

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLimitSilence: both ends of a connection with a member get the timeouts, and no other connection does.
func TestLimitSilence(t *testing.T) {
	for _, network := range []string{"127.0.0.1:0", "[::1]:0"} {
		member, other := connect(t, network), connect(t, network)
		limitSilence(map[netip.AddrPort]bool{member.address: true})
		for what, c := range map[string]struct {
			conn net.Conn
			want int
		}{
			"to a member":          {member.dialed, 5000},
			"from another member":  {member.accepted, 5000},
			"to another program":   {other.dialed, 0},
			"from another program": {other.accepted, 0},
		} {
			if got := option(t, c.conn, unix.TCP_USER_TIMEOUT); got != c.want {
				t.Errorf("%s, connection %s: silent for %d ms, want %d", network, what, got, c.want)
			}
			idle, every := option(t, c.conn, unix.TCP_KEEPIDLE), option(t, c.conn, unix.TCP_KEEPINTVL)
			if limited := idle == 2 && every == 1; limited != (c.want != 0) {
				t.Errorf("%s, connection %s: asked after %d s, every %d s", network, what, idle, every)
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
