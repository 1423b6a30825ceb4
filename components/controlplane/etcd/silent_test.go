package etcd

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
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

// follower is the member of a test.
type follower struct {
	leader            atomic.Uint64
	changed, stopping chan struct{}
}

func (f *follower) Leader() types.ID                     { return types.ID(f.leader.Load()) }
func (f *follower) LeaderChangedNotify() <-chan struct{} { return f.changed }
func (f *follower) StoppingNotify() <-chan struct{}      { return f.stopping }

// TestAwaitLeader: a member waits for its leader, unless it has one, and no longer than it runs.
func TestAwaitLeader(t *testing.T) {
	const soon = time.Minute
	for what, c := range map[string]struct {
		leader uint64 // at first
		then   func(f *follower, cancel func())
		want   bool
		within time.Duration
	}{
		"there is one":     {1, func(*follower, func()) {}, false, 0},
		"there is another": {0, func(f *follower, _ func()) { f.leader.Store(2); close(f.changed) }, true, soon},
		"the member stops": {0, func(f *follower, _ func()) { close(f.stopping) }, false, soon},
		"the caller stops": {0, func(_ *follower, cancel func()) { cancel() }, true, soon},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &follower{changed: make(chan struct{}), stopping: make(chan struct{})}
				f.leader.Store(c.leader)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(soon, func() { c.then(f, cancel) })
				began := time.Now()
				if waited := awaitLeader(ctx, f); waited != c.want || time.Since(began) != c.within {
					t.Errorf("%t after %s, want %t after %s", waited, time.Since(began), c.want, c.within)
				}
			})
		})
	}
}
