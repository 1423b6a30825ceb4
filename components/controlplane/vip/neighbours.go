package vip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"

	"kubelith.io/kubelith/base/reconcile"
)

// probes are sent probeEvery apart; a machine that has the address answers within milliseconds, unless it is busy.
// Source: RFC 5227, 2.1.1, with shorter waits: clients cannot reach the API meanwhile.
const (
	probes     = 3
	probeEvery = 200 * time.Millisecond
	// linkLocalPatience is longer than the kernel probes for an address.
	linkLocalPatience = 3 * time.Second
)

// probe implements carrier.
func (l *link) probe(ctx context.Context) (net.HardwareAddr, error) {
	if l.address.Is6() {
		return l.solicit(ctx)
	}
	c, err := arp.Dial(l.ifi)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	// From no address: no neighbour must learn anything from it.
	who, err := arp.NewPacket(arp.OperationRequest, l.ifi.HardwareAddr, netip.IPv4Unspecified(), make(net.HardwareAddr, 6), l.address)
	if err != nil {
		return nil, err
	}
	return ask(ctx, c.SetReadDeadline, func() error { return c.WriteTo(who, ethernet.Broadcast) }, func() (net.HardwareAddr, error) {
		p, _, err := c.Read()
		if err != nil || p.SenderIP != l.address || p.SenderHardwareAddr.String() == l.ifi.HardwareAddr.String() {
			return nil, err
		}
		return p.SenderHardwareAddr, nil
	})
}

// solicit is probe for IPv6.
func (l *link) solicit(ctx context.Context) (net.HardwareAddr, error) {
	c, err := l.icmp(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	group, err := ndp.SolicitedNodeMulticast(l.address)
	if err != nil {
		return nil, err
	}
	who := &ndp.NeighborSolicitation{TargetAddress: l.address, Options: []ndp.Option{
		&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: l.ifi.HardwareAddr},
	}}
	return ask(ctx, c.SetReadDeadline, func() error { return c.WriteTo(who, nil, group) }, func() (net.HardwareAddr, error) {
		m, _, _, err := c.ReadFrom()
		if err != nil {
			return nil, err
		}
		answer, ok := m.(*ndp.NeighborAdvertisement)
		if !ok || answer.TargetAddress != l.address {
			return nil, nil
		}
		for _, o := range answer.Options {
			if a, ok := o.(*ndp.LinkLayerAddress); ok && a.Direction == ndp.Target {
				if a.Addr.String() == l.ifi.HardwareAddr.String() {
					return nil, nil
				}
				return a.Addr, nil
			}
		}
		return make(net.HardwareAddr, 6), nil
	})
}

// ask sends a question until a neighbour answers: read returns neither an answer nor an error for other packets.
func ask(ctx context.Context, deadline func(time.Time) error, send func() error, read func() (net.HardwareAddr, error)) (net.HardwareAddr, error) {
	for range probes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := deadline(time.Now().Add(probeEvery)); err != nil {
			return nil, err
		}
		if err := send(); err != nil {
			return nil, err
		}
		for {
			by, err := read()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil || by != nil {
				return by, err
			}
		}
	}
	return nil, nil
}

// announce implements carrier.
func (l *link) announce() error {
	if l.address.Is6() {
		return l.advertise()
	}
	c, err := arp.Dial(l.ifi)
	if err != nil {
		return err
	}
	defer c.Close()
	// Some machines learn from requests only, others from replies only.
	for _, op := range []arp.Operation{arp.OperationRequest, arp.OperationReply} {
		p, err := arp.NewPacket(op, l.ifi.HardwareAddr, l.address, ethernet.Broadcast, l.address)
		if err != nil {
			return err
		}
		if err := c.WriteTo(p, ethernet.Broadcast); err != nil {
			return err
		}
	}
	return nil
}

// advertise is announce for IPv6.
func (l *link) advertise() error {
	c, err := l.icmp(context.Background())
	if err != nil {
		return err
	}
	defer c.Close()
	return c.WriteTo(&ndp.NeighborAdvertisement{
		Override: true, TargetAddress: l.address,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: l.ifi.HardwareAddr}},
	}, nil, netip.IPv6LinkLocalAllNodes())
}

// icmp opens a socket for neighbour discovery. An interface that has just come up cannot use its link-local address
// yet.
func (l *link) icmp(ctx context.Context) (*ndp.Conn, error) {
	for begin := time.Now(); ; {
		c, _, err := ndp.Listen(l.ifi, ndp.LinkLocal)
		if err == nil || time.Since(begin) > linkLocalPatience {
			return c, err
		}
		if !reconcile.Sleep(ctx, probeEvery) {
			return nil, ctx.Err()
		}
	}
}
