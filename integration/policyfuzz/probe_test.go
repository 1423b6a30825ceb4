package policyfuzz

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// probe is a connection that is tried: a number goes to an endpoint, and comes back.
type probe struct {
	From, To int // endpoints
	Family   int // 0: IPv4, 1: IPv6
	Protocol corev1.Protocol
	Port     int
	Service  int  // 1 and up: To and Port are those behind this Service, and its address is used; dns: cluster DNS
	Kept     bool // TCP: on the connection that is open from an earlier case; UDP: from a socket that earlier cases have used
}

const dns = 100

// target returns the address and port that the client uses.
func (w *world) target(p probe) netip.AddrPort {
	switch {
	case p.Service == dns:
		return netip.AddrPortFrom(dnsVIPs[p.Family], 53)
	case p.Service > 0:
		return netip.AddrPortFrom(serviceIPs(p.Service - 1)[p.Family], 80)
	}
	return netip.AddrPortFrom(w.endpoints[p.To].ips[p.Family], uint16(p.Port))
}

// passes reports whether the probe meets this node's rules. The node's own connections to Services are translated
// elsewhere.
func (w *world) passes(p probe) bool {
	from, to := w.endpoints[p.From], w.endpoints[p.To]
	return from.netns != to.netns && (from.kind == local || to.kind == local) && (p.Service == 0 || from.kind != node)
}

func (w *world) text(p probe) string {
	text := fmt.Sprintf("%s %s -> %s", w.endpoints[p.From].name, w.endpoints[p.From].ips[p.Family], w.endpoints[p.To].name)
	text += fmt.Sprintf(" %s %s", netip.AddrPortFrom(w.endpoints[p.To].ips[p.Family], uint16(p.Port)), p.Protocol)
	if p.Service > 0 {
		text += fmt.Sprintf(" through %s", w.target(p))
	}
	if p.Kept {
		text += " (kept)"
	}
	return text
}

// outcome is how far a probe came.
type outcome int

const (
	nothing  outcome = iota
	reached          // the target has got a packet
	answered         // and the client the answer
)

func (o outcome) String() string { return [...]string{"nothing", "reached", "answered"}[o] }

// exchange is what is under way.
type exchange struct {
	mu       sync.Mutex
	probes   map[uint64]int // by number
	outcomes []outcome
	changed  chan struct{}
}

// is notes how far a number came.
func (x *exchange) is(number uint64, o outcome) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if i, ok := x.probes[number]; ok && x.outcomes[i] < o {
		x.outcomes[i] = o
		select {
		case x.changed <- struct{}{}:
		default:
		}
	}
}

// all reports whether all that should be are answered.
func (x *exchange) all(expected []bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, yes := range expected {
		if yes && x.outcomes[i] != answered {
			return false
		}
	}
	return true
}

// serve answers on all ports of an endpoint.
func (w *world) serve(t *testing.T, e *endpoint) error {
	listening := ports
	if e.kind == node {
		listening = append([]int{dnsPort}, ports...)
	}
	return e.netns.Do(func(ns.NetNS) error {
		for f, ip := range e.ips {
			for _, port := range listening {
				address := netip.AddrPortFrom(ip, uint16(port))
				l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
				if err != nil {
					return err
				}
				t.Cleanup(func() { l.Close() })
				go serveTCP(l)
				u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
				if err != nil {
					return err
				}
				t.Cleanup(func() { u.Close() })
				go w.serveUDP(u)
			}
			var err error
			if e.kept[f], err = w.newClient(ip); err != nil {
				return err
			}
			t.Cleanup(e.kept[f].close)
			if e.sctp[f], err = w.serveSCTP(ip); err != nil {
				return err
			}
			t.Cleanup(func() { e.sctp[f].Close() })
		}
		return nil
	})
}

func serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, c) // until the client closes or resets
		}()
	}
}

func (w *world) serveUDP(u *net.UDPConn) {
	var b [64]byte
	for {
		n, from, err := u.ReadFromUDPAddrPort(b[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n == 8 {
			w.current.Load().is(binary.BigEndian.Uint64(b[:]), reached)
			u.WriteToUDPAddrPort(b[:n], from)
		}
	}
}

// client is a UDP socket that reads answers.
type client struct{ *net.UDPConn }

// newClient opens one in the current network namespace.
func (w *world) newClient(ip netip.Addr) (*client, error) {
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
	if err != nil {
		return nil, err
	}
	go func() {
		var b [64]byte
		for {
			n, _, err := u.ReadFromUDPAddrPort(b[:])
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n == 8 {
				w.current.Load().is(binary.BigEndian.Uint64(b[:]), answered)
			}
		}
	}()
	return &client{u}, nil
}

func (c *client) close() { c.Close() }

// Times. A difference must not come from a slow machine: what should be answered has long, and then the rest has as
// long again as that took, at least grace.
const (
	patience = 3 * time.Second
	grace    = 20 * time.Millisecond
)

// flows are TCP connections that stay open from case to case.
type flows map[probe]int // sockets

func (f flows) close(p probe) {
	if fd, ok := f[p]; ok {
		unix.Close(fd)
		delete(f, p)
	}
}

// try tries probes at the same time. It waits for those that should be answered, and a little for the others.
func (w *world) try(probes []probe, expected []bool, kept flows) ([]outcome, error) {
	x := &exchange{probes: map[uint64]int{}, outcomes: make([]outcome, len(probes)), changed: make(chan struct{}, 1)}
	numbers := make([]uint64, len(probes))
	byClient := map[int][]int{}
	for i, p := range probes {
		numbers[i] = rand.Uint64()
		x.probes[numbers[i]] = i
		if p.Protocol == corev1.ProtocolSCTP {
			numbers[i] |= 1 << 16 // the verification tag must not be 0
			x.probes[uint64(sctpNumber(numbers[i]))] = i
		}
		byClient[p.From] = append(byClient[p.From], i)
	}
	w.current.Store(x)
	defer w.current.Store(nil)

	var sockets []*socket
	defer func() {
		for _, s := range sockets {
			if s.keep && x.outcomes[s.probe] == answered && expected[s.probe] {
				kept[probes[s.probe]] = s.fd
				continue
			}
			if s.keep {
				delete(kept, probes[s.probe])
			}
			unix.Close(s.fd)
		}
	}()
	var opened []*client
	defer func() {
		for _, c := range opened {
			c.close()
		}
	}()
	start := time.Now()
	for from, indices := range byClient {
		e := w.endpoints[from]
		err := e.netns.Do(func(ns.NetNS) error {
			var fresh [2]*client
			for f, ip := range e.ips {
				var err error
				if fresh[f], err = w.newClient(ip); err != nil {
					return err
				}
				opened = append(opened, fresh[f])
			}
			for _, i := range indices {
				p := probes[i]
				var b [8]byte
				binary.BigEndian.PutUint64(b[:], numbers[i])
				to := w.target(p)
				switch p.Protocol {
				case corev1.ProtocolUDP:
					c := fresh[p.Family]
					if p.Kept {
						c = e.kept[p.Family]
					}
					if _, err := c.WriteToUDPAddrPort(b[:], to); err != nil {
						return fmt.Errorf("%s: %w", w.text(p), err)
					}
				case corev1.ProtocolSCTP:
					if err := sendInit(e.sctp[p.Family], to, numbers[i]); err != nil {
						return fmt.Errorf("%s: %w", w.text(p), err)
					}
				case corev1.ProtocolTCP:
					s := &socket{probe: i, number: numbers[i], data: b, keep: p.Kept}
					if fd, ok := kept[p]; ok && p.Kept {
						s.fd, s.connected = fd, true
						s.send()
					} else if err := s.connect(netip.AddrPortFrom(e.ips[p.Family], 0), to); err != nil {
						return fmt.Errorf("%s: %w", w.text(p), err)
					}
					sockets = append(sockets, s)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	stop, polled := make(chan struct{}), make(chan error, 1)
	go func() { polled <- poll(sockets, x, stop) }()
	end := time.After(w.patience)
	for !x.all(expected) {
		select {
		case <-x.changed:
			continue
		case <-end:
		}
		break
	}
	time.Sleep(max(grace, time.Since(start)/2))
	close(stop)
	err := <-polled
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]outcome(nil), x.outcomes...), err
}

// socket is a TCP connection. net.Dialer would need a thread for each.
type socket struct {
	fd        int
	probe     int
	number    uint64
	data      [8]byte
	got       int
	connected bool
	keep      bool
	done      bool
}

// connect begins to connect, from the current network namespace.
func (s *socket) connect(from, to netip.AddrPort) error {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.fd = fd
	// A reset leaves no port behind that waits.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(from)); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func (s *socket) send() { unix.Write(s.fd, s.data[:]) }

// poll follows connections until stop is closed.
func poll(sockets []*socket, x *exchange, stop chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		var waiting []unix.PollFd
		var of []*socket
		for _, s := range sockets {
			if s.done {
				continue
			}
			events := int16(unix.POLLIN)
			if !s.connected {
				events = unix.POLLOUT
			}
			waiting = append(waiting, unix.PollFd{Fd: int32(s.fd), Events: events})
			of = append(of, s)
		}
		if len(waiting) == 0 {
			<-stop
			return nil
		}
		if _, err := unix.Poll(waiting, 5); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for i, s := range of {
			if waiting[i].Revents == 0 {
				continue
			}
			if err := s.advance(x); err != nil {
				return err
			}
		}
	}
}

func (s *socket) advance(x *exchange) error {
	if !s.connected {
		code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return err
		}
		if code != 0 { // no end refuses here: packets are dropped
			s.done = true
			return fmt.Errorf("connect: %w", unix.Errno(code))
		}
		s.connected = true
		x.is(s.number, reached)
		s.send()
		return nil
	}
	var b [64]byte
	n, err := unix.Read(s.fd, b[:])
	switch {
	case err != nil && !errors.Is(err, unix.EAGAIN):
		s.done = true
	case err == nil && n == 0:
		s.done = true
	case err == nil:
		// A kept connection may still get what was sent on it in an earlier case.
		if s.got += n; binary.BigEndian.Uint64(b[max(0, n-8):]) == s.number {
			s.done = true
			x.is(s.number, answered)
		}
	}
	return nil
}
