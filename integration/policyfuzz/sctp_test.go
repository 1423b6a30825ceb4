package policyfuzz

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
)

// SCTP is implemented here by hand, with raw sockets: the kernel may have no SCTP, while conntrack and nft know it. A
// probe is an INIT, and its answer an INIT ACK.
//
// Source: RFC 9260, 3.1, 3.3.2, 3.3.3 and appendix A.
const (
	sctpInit    = 1
	sctpInitAck = 2
)

// sctpNumber is the part of a number that fits in a tag.
func sctpNumber(n uint64) uint32 { return uint32(n) }

// sctpPacket returns a packet with one chunk.
func sctpPacket(from, to uint16, tag uint32, chunk byte, initiate uint32) []byte {
	b := make([]byte, 12+20)
	binary.BigEndian.PutUint16(b[0:], from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], tag)
	b[12] = chunk
	binary.BigEndian.PutUint16(b[14:], 20)
	binary.BigEndian.PutUint32(b[16:], initiate)
	binary.BigEndian.PutUint32(b[20:], 1<<16) // window
	binary.BigEndian.PutUint16(b[24:], 1)     // streams out
	binary.BigEndian.PutUint16(b[26:], 1)     // streams in
	binary.BigEndian.PutUint32(b[28:], 1)     // first number of a chunk
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// sendInit sends a number to an address.
func sendInit(c *net.IPConn, to netip.AddrPort, number uint64) error {
	from := 20000 + rand.N[uint16](10000)
	_, err := c.WriteTo(sctpPacket(from, to.Port(), 0, sctpInit, sctpNumber(number)), &net.IPAddr{IP: to.Addr().AsSlice()})
	return err
}

// serveSCTP answers in the current network namespace, and reads answers.
func (w *world) serveSCTP(ip netip.Addr) (*net.IPConn, error) {
	network := "ip4:132"
	if ip.Is6() {
		network = "ip6:132"
	}
	c, err := net.ListenIP(network, &net.IPAddr{IP: ip.AsSlice()})
	if err != nil {
		return nil, err
	}
	go func() {
		b := make([]byte, 256)
		for {
			n, from, err := c.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil || n < 32 {
				continue
			}
			client, server := binary.BigEndian.Uint16(b[0:]), binary.BigEndian.Uint16(b[2:])
			switch b[12] {
			case sctpInit:
				number := binary.BigEndian.Uint32(b[16:])
				w.current.Load().is(uint64(number), reached)
				c.WriteTo(sctpPacket(server, client, number, sctpInitAck, 1+rand.Uint32N(1<<31)), from)
			case sctpInitAck:
				w.current.Load().is(uint64(binary.BigEndian.Uint32(b[4:])), answered)
			}
		}
	}()
	return c, nil
}
