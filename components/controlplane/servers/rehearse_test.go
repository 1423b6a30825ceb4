package servers

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"kubelith.io/kubelith/components/controlplane/etcd"
)

// opening is an etcd that is alone until it is opened.
type opening struct {
	member
	open bool
	err  error // of opening
}

func (o *opening) Open() bool { return o.open }

func (o *opening) OpenToPeers(context.Context, etcd.Peer) error {
	o.open = o.err == nil
	return o.err
}

// peerAt returns the URL of a port of this machine, which a listener has, and the listener.
func peerAt(t *testing.T) (string, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return "https://127.0.0.1:" + port, l
}

// TestRehearse: a server that is alone accepts connections for a machine that tries, and neither opens its etcd nor
// writes anything. A port that something else has is a refusal.
func TestRehearse(t *testing.T) {
	newcomer, _ := peerAt(t)
	ours, other := peerAt(t)
	e := &opening{member: member{{ID: 1, Name: "a", URL: "unix:///a", Self: true}}}
	s := server(t, nil)
	s.opts.Etcd, s.opts.Peer = e, etcd.Peer{URL: ours}
	defer s.trial.stop()
	if _, err := s.rehearse(t.Context(), request{PeerURL: newcomer}); !refusedWith(err, "server a cannot listen for other servers") {
		t.Errorf("its port is taken: %v", err)
	}
	if err := s.open(t.Context()); !refusedWith(err, "stop what uses its port 2380/tcp") || e.open {
		t.Errorf("its port is taken: %v, open %v", err, e.open)
	}
	other.Close()
	for range 2 { // of two machines
		reach, err := s.rehearse(t.Context(), request{PeerURL: newcomer})
		if err != nil || len(reach) != 1 || reach["a"] != ours {
			t.Fatalf("it has to reach %v, %v", reach, err)
		}
		if err := reachAll(t.Context(), reach); err != nil {
			t.Error(err)
		}
	}
	if m, err := Load(s.opts.DataDir); e.open || m != nil || err != nil || len(s.Ports()) != 0 {
		t.Errorf("a rehearsal opened etcd (%v) or stored %v, %v", e.open, m, err)
	}
}

// TestOpen: the membership is stored when etcd is open, and not if that fails: a process that ends is alone again.
func TestOpen(t *testing.T) {
	ours, other := peerAt(t)
	other.Close()
	e := &opening{member: member{{ID: 1, Name: "a", URL: ours, Self: true}}, err: errors.New("it did not start")}
	s := server(t, nil)
	s.opts.Etcd, s.opts.Peer = e, etcd.Peer{URL: ours}
	if err := s.trial.start(t.Context(), ours); err != nil { // it makes way
		t.Fatal(err)
	}
	if err := s.open(t.Context()); !errors.Is(err, e.err) {
		t.Errorf("error %v", err)
	}
	if m, err := Load(s.opts.DataDir); m != nil || err != nil {
		t.Errorf("stored %v, %v", m, err)
	}
	e.err = nil
	if err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m, err := Load(s.opts.DataDir); err != nil || m == nil || m.PeerURL != ours {
		t.Errorf("stored %v, %v", m, err)
	}
	if ports := s.Ports(); len(ports) != 1 || ports[0].Number != 2380 || ports[0].Network != "tcp" {
		t.Errorf("ports %v", ports)
	}
}

// TestWhileUnhealthy: only what passes by itself is repeated.
func TestWhileUnhealthy(t *testing.T) {
	for _, tc := range []struct {
		errs  []error
		calls int
	}{
		{[]error{nil}, 1},
		{[]error{rpctypes.ErrUnhealthy, nil}, 2},
		{[]error{rpctypes.ErrTooManyLearners}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			err := whileUnhealthy(t.Context(), func() error { calls++; return tc.errs[calls-1] })
			if calls != tc.calls || !errors.Is(err, tc.errs[calls-1]) {
				t.Errorf("%v: %d calls, %v", tc.errs, calls, err)
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := whileUnhealthy(ended, func() error { return rpctypes.ErrUnhealthy }); !errors.Is(err, rpctypes.ErrUnhealthy) {
		t.Errorf("error %v", err)
	}
}
