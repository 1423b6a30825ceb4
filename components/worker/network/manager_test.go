package network

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
	"go.uber.org/goleak"
)

// backendLoop does as flannel's backends do: it takes batches of leases until their stream ends, or until its context
// does, and then waits for those that feed it.
func backendLoop(ctx context.Context, m *manager, handle func(lease.Event)) {
	batches, fed := make(chan []lease.Event), make(chan struct{})
	go func() {
		defer close(fed)
		subnet.WatchLeases(ctx, m, &m.own, batches)
	}()
	defer func() { <-fed }()
	for {
		select {
		case batch, ok := <-batches:
			if !ok {
				return
			}
			for _, e := range batch {
				handle(e)
			}
		case <-ctx.Done():
			return
		}
	}
}

func testManager(t *testing.T) *manager {
	t.Helper()
	own := describe(obj("own", "10.42.0.0/24", "192.0.2.1"))
	l, err := leaseOf(VXLAN, own)
	if err != nil {
		t.Fatal(err)
	}
	return newManager("own", l)
}

func peerLease(t *testing.T, i int) lease.Lease {
	t.Helper()
	l, err := leaseOf(VXLAN, describe(obj("b", fmt.Sprintf("10.42.%d.0/24", i), fmt.Sprintf("192.0.2.%d", i))))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestEndWithoutDeadlock stops a session while leases are being handed over, at many moments.
func TestEndWithoutDeadlock(t *testing.T) {
	defer goleak.VerifyNone(t)
	for round := range 300 {
		m := testManager(t)
		s := &session{leases: m, ended: make(chan struct{})}
		running, cancel := context.WithCancel(context.Background())
		s.cancel = cancel
		go func() {
			defer close(s.ended)
			backendLoop(running, m, func(lease.Event) { time.Sleep(time.Duration(round%7) * time.Microsecond) })
		}()
		for i := 1; i <= round%40; i++ {
			m.add(fmt.Sprint(i), peerLease(t, i))
		}
		if err := s.end(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

// Each node arrives once, with what was last reported about it, and never our own.
func TestAdditions(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := testManager(t)
	s := &session{leases: m, ended: make(chan struct{})}
	running, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	m.add("own", m.own)
	m.add("b", peerLease(t, 2))
	m.add("b", peerLease(t, 3))
	m.add("c", peerLease(t, 4))
	got := make(chan lease.Event, 10)
	go func() {
		defer close(s.ended)
		backendLoop(running, m, func(e lease.Event) { got <- e })
	}()
	for _, want := range []string{"10.42.3.0/24", "10.42.4.0/24"} {
		select {
		case e := <-got:
			if e.Type != lease.EventAdded || e.Lease.Subnet.String() != want {
				t.Errorf("got %v %s, want %s", e.Type, e.Lease.Subnet, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s did not arrive", want)
		}
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if len(got) != 0 {
		t.Errorf("a further event: %+v", <-got)
	}
}

func TestUnusedMethodsFail(t *testing.T) {
	m := testManager(t)
	if m.RenewLease(context.Background(), nil) == nil || m.CompleteLease(context.Background(), nil, nil) == nil {
		t.Error("a method that does nothing reports success")
	}
	if four, six := m.GetStoredMacAddresses(context.Background()); four != vtepMAC("own", ipv4).String() || six != vtepMAC("own", ipv6).String() {
		t.Errorf("%s %s", four, six)
	}
}
