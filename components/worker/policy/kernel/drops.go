package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	nflog "github.com/florianl/go-nflog/v2"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/names"
)

// Drop is a packet that was dropped.
type Drop struct {
	Class    string // that did not allow it
	Reply    bool   // the packet is an answer
	From, To netip.Addr
	Protocol uint8 // as in IP
	// Ports are those of TCP, UDP and SCTP, otherwise 0.
	FromPort, ToPort uint16
}

// snapshot is how many bytes of a packet are read: the headers.
const snapshot = 128

func logPrefix(class, direction string) string { return class + " " + direction }

// ReadDrops calls dropped with each dropped packet that the kernel reports, until ctx ends.
func ReadDrops(ctx context.Context, dropped func(Drop)) error {
	reader, err := nflog.Open(&nflog.Config{Group: names.PolicyLogGroup, Copymode: nflog.CopyPacket, Bufsize: snapshot})
	if err != nil {
		return fmt.Errorf("read what network policies drop: %w", err)
	}
	failed := make(chan error, 1)
	err = reader.RegisterWithErrorFunc(ctx, func(a nflog.Attribute) int {
		if a.Prefix != nil && a.Payload != nil {
			if d, ok := parseDrop(*a.Prefix, *a.Payload); ok {
				dropped(d)
			}
		}
		return 0
	}, func(err error) int {
		if ctx.Err() == nil && errors.Is(err, unix.ENOBUFS) {
			return 0 // too many at once
		}
		failed <- err
		return 1
	})
	if err == nil {
		select {
		case err = <-failed:
		case <-ctx.Done(): // it may end without an error
		}
	}
	reader.Close()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("read what network policies drop, NFLOG group %d, which no other program may read: %w", names.PolicyLogGroup, err)
}

// parseDrop reads the beginning of a packet.
func parseDrop(prefix string, packet []byte) (d Drop, ok bool) {
	class, direction, ok := strings.Cut(strings.TrimRight(prefix, "\x00"), " ")
	if !ok || len(packet) == 0 {
		return d, false
	}
	d.Class, d.Reply = class, direction == "reply"
	var rest []byte
	switch packet[0] >> 4 {
	case 4:
		header := int(packet[0]&0xf) * 4
		if header < 20 || len(packet) < header {
			return d, false
		}
		d.Protocol = packet[9]
		d.From, d.To = netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
		if binary.BigEndian.Uint16(packet[6:8])&0x1fff == 0 { // the first fragment, or the only one
			rest = packet[header:]
		}
	case 6:
		const header = 40
		if len(packet) < header {
			return d, false
		}
		d.Protocol = packet[6]
		d.From, d.To = netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40]))
		rest = packet[header:]
	default:
		return d, false
	}
	switch d.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if len(rest) >= 4 {
			d.FromPort, d.ToPort = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
		}
	}
	return d, true
}
