package vip

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"kubelith.io/kubelith/base/names"
)

var vip = netip.MustParseAddr("192.0.2.9")

// network is a carrier that notes what is done.
type network struct {
	did       []string
	other     net.HardwareAddr // has the address
	fails     error            // of put
	announced func()
}

func (n *network) probe(context.Context) (net.HardwareAddr, error) {
	n.did = append(n.did, "probe")
	return n.other, nil
}

func (n *network) put(time.Duration) error {
	n.did = append(n.did, "put")
	return n.fails
}

func (n *network) remove() error {
	n.did = append(n.did, "remove")
	return nil
}

func (n *network) announce() error {
	n.did = append(n.did, "announce")
	if n.announced != nil {
		n.announced()
	}
	return nil
}

func (n *network) String() string { return "eth0" }

// take returns what was done since the last call.
func (n *network) take() []string {
	did := n.did
	n.did = nil
	return did
}

func newServer(alone bool) (*Server, *network, *test.Hook) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := New(Options{NodeName: "a", Alone: func() bool { return alone }, Log: log})
	return s, &network{}, test.NewLocal(log)
}

func TestCarry(t *testing.T) {
	s, n, log := newServer(false)
	c := &carrying{server: s, at: n, address: vip}
	step := func(what string, can bool, want ...string) {
		t.Helper()
		if _, ok := c.step(t.Context()); ok != can {
			t.Errorf("%s: can carry it: %t", what, ok)
		}
		if did := n.take(); !slices.Equal(did, want) {
			t.Errorf("%s: did %v, want %v", what, did, want)
		}
	}
	step("without the Lease", true)
	s.holds(time.Now().Add(time.Minute))
	n.other = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for range 2 {
		step("another machine has it", false, "probe")
	}
	if all := log.AllEntries(); len(all) != 1 || !strings.Contains(all[0].Message, "02:00:00:00:00:01") {
		t.Errorf("the log does not name the other machine, once: %v", all)
	}
	n.other = nil
	step("it is free", true, "probe", "put", "announce")
	if s.complaint != "" {
		t.Errorf("carries it, and complains: %s", s.complaint)
	}
	step("it lives longer", true, "put")
	c.announced = time.Now().Add(-time.Second)
	step("it is announced again", true, "put", "announce")
	n.fails = errors.New("no such device")
	step("the interface refuses it", false, "put")
	n.fails = nil
	s.holds(time.Now().Add(-time.Millisecond))
	step("the Lease is not renewed", true, "remove")
	step("without the Lease", true)
	s.holds(time.Now().Add(time.Minute))
	step("renewed", true, "probe", "put", "announce")
	if !s.forgo() || s.forgo() {
		t.Error("a Lease that was given back is held")
	}
	step("given back", true, "remove")
}

// TestCarryEnds: what a killed process has left goes at first, and what this one has put at last.
func TestCarryEnds(t *testing.T) {
	s, n, _ := newServer(false)
	ctx, cancel := context.WithCancel(t.Context())
	s.holds(time.Now().Add(time.Minute))
	n.announced = cancel
	s.carry(ctx, n, vip)
	if did := n.take(); !slices.Equal(did, []string{"remove", "probe", "put", "announce", "remove"}) {
		t.Errorf("did %v", did)
	}
}

// TestCarryAlone: a server without others keeps the address when its disk is too slow to renew the Lease in time.
func TestCarryAlone(t *testing.T) {
	s, n, _ := newServer(true)
	c := &carrying{server: s, at: n, address: vip}
	c.step(t.Context())
	if did := n.take(); did != nil {
		t.Errorf("without a Lease ever: %v", did)
	}
	s.holds(time.Now().Add(-time.Hour))
	c.step(t.Context())
	if did := n.take(); !slices.Contains(did, "put") {
		t.Errorf("did %v", did)
	}
}

func TestLease(t *testing.T) {
	for name, tc := range map[string]struct {
		holder          string
		own             netip.Addr
		seen            string // by the elector
		changed, warned bool
	}{
		"another server's":        {"b/192.0.2.9", vip, "b/192.0.2.9", false, false},
		"given back":              {"/192.0.2.9", vip, "", false, false},
		"given back by upstream":  {"", vip, "", false, false},
		"of another address":      {"b/192.0.2.10", vip, "b/192.0.2.10", true, true},
		"without an address here": {"b/192.0.2.10", netip.Addr{}, "b/192.0.2.10", true, false},
	} {
		for _, follows := range []bool{true, false} {
			s, _, log := newServer(false)
			cs := fake.NewClientset(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: names.VIPLease},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &tc.holder},
			})
			l, changed := s.lock(cs, tc.own), false
			if follows {
				l.changed = func() { changed = true }
			}
			for range 2 {
				record, _, err := l.Get(t.Context())
				if err != nil || record.HolderIdentity != tc.seen {
					t.Errorf("%s: %v, %v", name, record, err)
				}
			}
			if changed != (tc.changed && follows) {
				t.Errorf("%s: changed %t", name, changed)
			}
			if got := len(log.AllEntries()); (got == 1) != (tc.warned && !follows) || got > 1 {
				t.Errorf("%s: %d lines of the log", name, got)
			}
		}
	}
}

// TestRelease: the Lease that a server gives back still names the address.
func TestRelease(t *testing.T) {
	s, _, _ := newServer(false)
	cs := fake.NewClientset()
	l := s.lock(cs, vip)
	if err := l.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: l.Identity(), LeaseDurationSeconds: 8}); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(s.held()); left <= 0 || left > s.timing.lease-s.timing.margin {
		t.Errorf("held for %s", left)
	}
	l.release()
	got, err := cs.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), names.VIPLease, metav1.GetOptions{})
	if err != nil || *got.Spec.HolderIdentity != "/192.0.2.9" {
		t.Errorf("%v, %v", got, err)
	}
	if !s.held().IsZero() {
		t.Error("it still holds the Lease")
	}
}

// TestTiming: upstream's elector accepts it, and the address is gone before another server may take it.
func TestTiming(t *testing.T) {
	for _, sync := range []time.Duration{0, 100 * time.Millisecond, 334 * time.Millisecond, time.Second, 10 * time.Second} {
		x := defaultTiming().on(sync)
		if x.lease <= x.renew || float64(x.renew) <= 1.2*float64(x.retry) || x.try > x.renew || x.retry+x.try > x.lease-x.margin {
			t.Errorf("%s: %+v", sync, x)
		}
		if x.lease != x.lease.Truncate(time.Second) {
			t.Errorf("%s: the Lease has whole seconds, not %s", sync, x.lease)
		}
		if x.margin < 2*time.Second { // lifetimes are whole seconds, and the kernel's timer may be one late
			t.Errorf("%s: margin %s", sync, x.margin)
		}
	}
}

func TestOurs(t *testing.T) {
	for name, tc := range map[string]struct {
		cidr  string
		flags int
		want  bool
	}{
		"ours":              {"192.0.2.9/32", unix.IFA_F_DEPRECATED, true},
		"ours, IPv6":        {"2001:db8::9/128", unix.IFA_F_DEPRECATED | unix.IFA_F_NODAD, true},
		"of an operator":    {"192.0.2.9/32", unix.IFA_F_PERMANENT, false},
		"of a DHCP client":  {"192.0.2.9/24", 0, false},
		"temporary address": {"2001:db8::9/64", unix.IFA_F_DEPRECATED, false},
	} {
		ip, network, err := net.ParseCIDR(tc.cidr)
		if err != nil {
			t.Fatal(err)
		}
		network.IP = ip
		if got := ours(netlink.Addr{IPNet: network, Flags: tc.flags}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
