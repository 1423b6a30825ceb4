package vip

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// announceTimes is how often the address is announced after it was taken, a second apart: a neighbour ignores what
// contradicts an answer of the last second (locktime in arp(7)). announceEvery is how often after that.
const announceTimes, announceEvery = 4, 30 * time.Second

// carrier has the address, on an interface.
type carrier interface {
	// probe returns the hardware address of another machine that has the address; nil: none has answered.
	probe(context.Context) (net.HardwareAddr, error)
	// put adds the address, or extends its life: the kernel removes it after that time, rounded up to seconds.
	put(life time.Duration) error
	// remove removes the address if it is there. It leaves one that put cannot have added.
	remove() error
	// announce announces the address to the neighbours.
	announce() error
	String() string
}

// carry carries the address while this server holds the Lease, until ctx ends or it cannot.
func (s *Server) carry(ctx context.Context, at carrier, address netip.Addr) {
	c := &carrying{server: s, at: at, address: address}
	defer c.drop("")
	// What a process that was killed has left.
	if err := at.remove(); err != nil {
		s.complain("cannot remove the virtual address %s from %s: %v", address, at, err)
		return
	}
	for ctx.Err() == nil {
		next, ok := c.step(ctx)
		if !ok {
			return
		}
		select {
		case <-s.wake:
		case <-time.After(next):
		case <-ctx.Done():
		}
	}
}

// carrying is the state of carry.
type carrying struct {
	server    *Server
	address   netip.Addr
	at        carrier
	has       bool // the address is on the interface
	announced time.Time
	times     int // announced since it was taken
}

// step does what is due, and returns when the next one is at the latest; false: this server cannot carry the address.
func (c *carrying) step(ctx context.Context) (next time.Duration, ok bool) {
	s := c.server
	defer s.work.Begin("changing the virtual address")()
	left := time.Until(s.held())
	switch {
	case left <= 0:
		c.drop("cannot renew the Lease in time")
		return s.timing.retry, true
	case !c.has:
		return s.timing.retry, c.take(ctx)
	}
	if err := c.at.put(left); err != nil {
		s.complain("cannot keep the virtual address %s on %s: %v", c.address, c.at, err)
		return 0, false
	}
	every := announceEvery
	if c.times < announceTimes {
		every = time.Second
	}
	if time.Since(c.announced) >= every {
		c.announce()
	}
	return min(left, s.timing.retry), true
}

// take takes the address, unless another machine has it.
func (c *carrying) take(ctx context.Context) bool {
	s := c.server
	other, err := c.at.probe(ctx)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		s.complain("cannot probe for the virtual address %s on %s: %v", c.address, c.at, err)
		return false
	case other != nil:
		s.complain("%v", Taken{c.address, other})
		return false
	}
	left := time.Until(s.held()) // the probe took some time
	if left <= 0 {
		return true
	}
	if err := c.at.put(left); err != nil {
		s.complain("cannot put the virtual address %s on %s: %v", c.address, c.at, err)
		return false
	}
	c.has, c.times, s.complaint = true, 0, ""
	c.announce()
	s.opts.Log.Infof("holding the virtual address %s on %s", c.address, c.at)
	return true
}

func (c *carrying) announce() {
	c.announced = time.Now()
	c.times++
	if err := c.at.announce(); err != nil {
		c.server.opts.Log.Warnf("cannot announce the virtual address %s on %s: %v", c.address, c.at, err)
	}
}

// drop removes the address, if this server carries it; without a reason it is a stop.
func (c *carrying) drop(why string) {
	if !c.has {
		return
	}
	c.has = false
	log := c.server.opts.Log
	if err := c.at.remove(); err != nil {
		log.Warnf("cannot remove the virtual address %s from %s; the kernel does within %s: %v", c.address, c.at, c.server.timing.lease, err)
	}
	if why != "" {
		log.Warnf("%s: giving up the virtual address %s", why, c.address)
	} else {
		log.Infof("gave up the virtual address %s", c.address)
	}
}
