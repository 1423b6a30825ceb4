package main

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"
)

// The chunks of SCTP's handshake, RFC 9260, section 3.
const (
	initChunk  = 1
	initAck    = 2
	abort      = 6
	cookieEcho = 10
	cookieAck  = 11
)

// packet is one of the handshake, with one chunk.
type packet struct {
	from, to uint16
	tag      uint32 // the receiver's
	chunk    byte
	own      uint32 // the sender's tag: initChunk and initAck
	cookie   uint32 // the client's tag: initAck and cookieEcho
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p packet) bytes() []byte {
	var value []byte
	if p.chunk == initChunk || p.chunk == initAck {
		value = binary.BigEndian.AppendUint32(value, p.own)
		value = binary.BigEndian.AppendUint32(value, 64<<10)  // window
		value = binary.BigEndian.AppendUint32(value, 1<<16|1) // streams
		value = binary.BigEndian.AppendUint32(value, p.own)   // number of the first chunk of data
	}
	if p.chunk == initAck {
		value = binary.BigEndian.AppendUint32(value, 7<<16|8) // parameter: cookie
	}
	if p.chunk == initAck || p.chunk == cookieEcho {
		value = binary.BigEndian.AppendUint32(value, p.cookie)
	}
	b := binary.BigEndian.AppendUint16(nil, p.from)
	b = binary.BigEndian.AppendUint16(b, p.to)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0, p.chunk, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	b = append(b, value...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

func parse(b []byte) (p packet, ok bool) {
	if len(b) < 16 {
		return p, false
	}
	p = packet{from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]), chunk: b[12]}
	value := b[16:]
	switch {
	case p.chunk == initChunk && len(value) >= 16:
		p.own = binary.BigEndian.Uint32(value)
	case p.chunk == initAck && len(value) >= 24:
		p.own, p.cookie = binary.BigEndian.Uint32(value), binary.BigEndian.Uint32(value[20:])
	case p.chunk == cookieEcho && len(value) >= 4:
		p.cookie = binary.BigEndian.Uint32(value)
	case p.chunk != cookieAck:
		return p, false
	}
	return p, true
}

// serveSCTP answers handshakes at a port, of both families.
func serveSCTP(port uint16) error {
	const own = 0x6b756265
	serve := func(network string) error {
		conn, err := net.ListenPacket(network, "")
		if err != nil {
			return err
		}
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return err
			}
			p, ok := parse(buf[:n])
			if !ok || p.to != port {
				continue
			}
			answer := packet{from: port, to: p.from}
			switch p.chunk {
			case initChunk:
				answer.chunk, answer.tag, answer.own, answer.cookie = initAck, p.own, own, p.own
			case cookieEcho:
				answer.chunk, answer.tag = cookieAck, p.cookie
			default:
				continue
			}
			conn.WriteTo(answer.bytes(), from) // the client asks again
		}
	}
	failed := make(chan error, 2)
	for _, network := range []string{"ip4:132", "ip6:132"} {
		go func() { failed <- serve(network) }()
	}
	return <-failed
}

// dialSCTP does a handshake, and ends the association.
func dialSCTP(address string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	to, err := resolve(address, deadline)
	if err != nil {
		return err
	}
	network := "ip4:132"
	if to.Addr().Is6() {
		network = "ip6:132"
	}
	conn, err := net.Dial(network, to.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	next := packet{from: 32768 + uint16(rand.N(28000)), to: to.Port(), chunk: initChunk, own: rand.Uint32()}
	own, want := next.own, byte(initAck)
	buf := make([]byte, 1500)
	for {
		if _, err := conn.Write(next.bytes()); err != nil {
			return err
		}
		again := time.Now().Add(time.Second)
		if again.After(deadline) {
			again = deadline
		}
		if err := conn.SetReadDeadline(again); err != nil {
			return err
		}
		for {
			n, err := conn.Read(buf)
			var late net.Error
			if errors.As(err, &late) && late.Timeout() && time.Now().Before(deadline) {
				break // ask again
			}
			if err != nil {
				return err
			}
			p, ok := parse(payload(network, buf[:n]))
			if !ok || p.from != next.to || p.to != next.from || p.tag != own || p.chunk != want {
				continue
			}
			if p.chunk == cookieAck {
				next.chunk = abort
				_, err := conn.Write(next.bytes())
				return err
			}
			next.chunk, next.tag, next.cookie, want = cookieEcho, p.own, p.cookie, cookieAck
			break
		}
	}
}

// payload leaves the header of IPv4 out, which Read, unlike ReadFrom, returns.
func payload(network string, b []byte) []byte {
	if network == "ip4:132" && len(b) > 0 && b[0]>>4 == 4 {
		if header := int(b[0]&15) * 4; header <= len(b) {
			return b[header:]
		}
	}
	return b
}

// resolve returns an address of a host's name.
func resolve(address string, deadline time.Time) (netip.AddrPort, error) {
	if to, err := netip.ParseAddrPort(address); err == nil {
		return to, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(net.JoinHostPort(ips[0].Unmap().String(), port))
}
