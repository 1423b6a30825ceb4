package vip

import (
	"context"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"kubelith.io/kubelith/base/names"
)

// timing of the Lease. A leader of etcd that dies is replaced within three seconds; the holder keeps the address
// meanwhile.
type timing struct {
	// lease is how long the others wait for the holder, and margin how much earlier it gives the address up: the kernel
	// removes it up to a second late.
	lease, margin time.Duration
	// renew is how long the holder tries to renew, retry the time between two tries, of the holder and of the others,
	// and try how long one may take.
	renew, retry, try time.Duration
}

func defaultTiming() timing {
	return timing{lease: 8 * time.Second, margin: 2 * time.Second, renew: 5 * time.Second, retry: time.Second, try: 2 * time.Second}
}

// on returns the timing for a disk with syncs of this length: a write of the Lease is at least four syncs.
func (t timing) on(sync time.Duration) timing {
	// The Lease has whole seconds.
	if slow := (24*sync + time.Second).Truncate(time.Second); slow > t.lease {
		return timing{lease: slow, margin: t.margin, renew: 16 * sync, retry: max(t.retry, 4*sync), try: 8 * sync}
	}
	return t
}

// lease is the Lease: its holder is NAME/ADDRESS. A Lease that was given back has the holder /ADDRESS, from which
// others learn the address.
type lease struct {
	resourcelock.Interface
	server  *Server
	address netip.Addr
	changed func() // called when the Lease names another address; nil: that does not matter
	warned  bool
}

func (s *Server) lock(cs kubernetes.Interface, address netip.Addr) *lease {
	return &lease{server: s, address: address, Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: names.VIPLease},
		Client:     cs.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: s.opts.NodeName + "/" + address.String()},
	}}
}

// elect holds the Lease whenever no other server does, until ctx ends.
func (l *lease) elect(ctx context.Context) error {
	t := l.server.timing
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: names.VIPLease, Lock: l, LeaseDuration: t.lease, RenewDeadline: t.renew, RetryPeriod: t.retry,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
		})
		if err != nil {
			return err
		}
		elector.Run(ctx)
	}
	return nil
}

// Get implements resourcelock.Interface.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, l.server.timing.try)
	defer cancel()
	record, raw, err := l.Interface.Get(ctx)
	if err != nil {
		return nil, nil, err
	}
	holder, text, _ := strings.Cut(record.HolderIdentity, "/")
	if address, err := netip.ParseAddr(text); err == nil {
		l.server.note(address)
		switch {
		case address == l.address:
		case l.changed != nil:
			l.changed()
		case l.address.IsValid() && holder != "" && !l.warned:
			l.warned = true
			l.server.opts.Log.Warnf("server %s holds the virtual address %s, but --vip of this server is %s: give all servers the same --vip",
				holder, address, l.address)
		}
	}
	if holder == "" {
		record.HolderIdentity = ""
	}
	return record, raw, nil
}

// Create implements resourcelock.Interface.
func (l *lease) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, func(ctx context.Context) error { return l.Interface.Create(ctx, r) })
}

// Update implements resourcelock.Interface.
func (l *lease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, func(ctx context.Context) error { return l.Interface.Update(ctx, r) })
}

// write writes with this server as the holder. A request that takes long is sent again: the leader of etcd to which it
// went may have died.
func (l *lease) write(ctx context.Context, do func(context.Context) error) error {
	t := l.server.timing
	ctx, cancel := context.WithTimeout(ctx, t.try)
	defer cancel()
	began := time.Now()
	err := do(ctx)
	if err == nil {
		l.server.holds(began.Add(t.lease - t.margin))
	}
	return err
}

// release lets another server carry the address at once; this one does not carry it any more. A failure only means that
// the others wait for the end of the Lease.
func (l *lease) release() {
	if !l.server.forgo() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.server.timing.try)
	defer cancel()
	record, _, err := l.Get(ctx)
	if err != nil || record.HolderIdentity != l.Identity() {
		return
	}
	now := metav1.Now()
	err = l.Interface.Update(ctx, resourcelock.LeaderElectionRecord{
		HolderIdentity: "/" + l.address.String(), LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
	})
	if err != nil {
		l.server.opts.Log.Debugf("cannot give the Lease back: %v", err)
	}
}

// note notes the address that the Lease names.
func (s *Server) note(address netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named = address
}

// holds is called after a write of the Lease: the address is this server's until that time.
func (s *Server) holds(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = until
	s.wake.Send()
}

// forgo ends holding the Lease, and reports whether this server held it.
func (s *Server) forgo() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := time.Now().Before(s.until)
	s.until = time.Time{}
	return held
}

// held returns until when this server may carry the address. A server that is alone may go on when its disk is too slow
// to renew: no other takes over.
func (s *Server) held() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.until.IsZero() && s.opts.Alone() {
		return time.Now().Add(s.timing.lease - s.timing.margin)
	}
	return s.until
}
