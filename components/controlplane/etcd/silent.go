package etcd

import (
	"context"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"golang.org/x/sys/unix"
)

// A member that was cut off from the others reads from connections on which nothing will arrive: the other members
// have given them up, or TCP retransmits at intervals that have grown. etcd means to end such a connection after five
// seconds without a byte, and does not: its transport for peers sets http.Transport.Dial, and NewTransport, which it
// calls first, DialContext, which has precedence. After 70 s a member was without its leader for another 10 to 40 s.
// The kernel ends these connections instead, and etcd dials again ten times a second.
// Source: etcd/client/pkg/transport/timeout_transport.go of 3.6 to 3.8, tcp(7).

// A connection that is silent for probeAfter is probed every probeEvery, and ended when probes have no answer. One that
// another member has dialed, to read a stream, is also ended when sent bytes are not acknowledged for silentFor: the
// stream's writer would wait for it, and take no new connection meanwhile. Both are etcd's own limit for streams
// (DefaultConnReadTimeout and DefaultConnWriteTimeout in etcd/server/etcdserver/api/rafthttp/peer.go). A snapshot goes
// to a member that waits for its disk by a connection that the sender has dialed.
const (
	silentFor              = 5 * time.Second
	probeAfter, probeEvery = 2 * time.Second, time.Second
	probes                 = 3
)

// lookEvery is how often the connections are looked for.
const lookEvery = time.Second

// endSilent has the kernel end connections with other members that are silent, until ctx ends.
func endSilent(ctx context.Context, e *embed.Etcd) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if members := e.Server.Cluster().Members(); len(members) > 1 {
			limitSilence(peerAddresses(members))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// peerAddresses returns where members listen for each other.
func peerAddresses(members []*membership.Member) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, m := range members {
		for _, text := range m.PeerURLs {
			u, err := url.Parse(text)
			if err != nil {
				continue
			}
			if address, err := netip.ParseAddrPort(u.Host); err == nil {
				all[address] = true
			}
		}
	}
	return all
}

// limitSilence has the kernel end silent TCP connections of this process of which one end is one of the addresses. The
// number of a file may have become another connection's meanwhile: that one has the limits, too, then.
func limitSilence(of map[netip.AddrPort]bool) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		remote, err := unix.Getpeername(fd)
		if err != nil { // no connection
			continue
		}
		local, err := unix.Getsockname(fd)
		if err != nil || !of[addrPort(remote)] && !of[addrPort(local)] {
			continue
		}
		options := map[int]int{
			unix.TCP_KEEPIDLE:  int(probeAfter.Seconds()),
			unix.TCP_KEEPINTVL: int(probeEvery.Seconds()),
			unix.TCP_KEEPCNT:   probes,
		}
		if of[addrPort(local)] {
			options[unix.TCP_USER_TIMEOUT] = int(silentFor.Milliseconds())
		}
		for option, value := range options {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) // it may just have been closed
		}
	}
}

// addrPort returns the zero value for an address that is not of TCP.
func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
