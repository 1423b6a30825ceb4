package etcd

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLimitSilence: both ends of a connection with a member are probed, and the one that accepted it has a limit for
// what is not acknowledged; no other connection has.
func TestLimitSilence(t *testing.T) {
	for _, network := range []string{"127.0.0.1:0", "[::1]:0"} {
		member, other := connect(t, network), connect(t, network)
		usual := limits(t, other.dialed) // Go's
		limitSilence(map[netip.AddrPort]bool{member.address: true})
		for what, c := range map[string]struct {
			conn net.Conn
			want [4]int // seconds until it is probed, between probes, probes, and milliseconds
		}{
			"to a member":          {member.dialed, [4]int{2, 1, 3, 0}},
			"from another member":  {member.accepted, [4]int{2, 1, 3, 5000}},
			"to another program":   {other.dialed, usual},
			"from another program": {other.accepted, usual},
		} {
			if got := limits(t, c.conn); got != c.want {
				t.Errorf("%s, connection %s: %v, want %v", network, what, got, c.want)
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

func limits(t *testing.T, c net.Conn) (all [4]int) {
	t.Helper()
	for i, name := range []int{unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT, unix.TCP_USER_TIMEOUT} {
		all[i] = option(t, c, name)
	}
	return all
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
