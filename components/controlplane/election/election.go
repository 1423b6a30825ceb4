// Package election decides which server does the work that a cluster does once: controllers, the scheduler, and what
// Kubelith itself writes for all nodes. The server that holds the Lease kube-system/kubelith leads; its term is the
// time for which it holds the Lease.
//
//	(follows) --lease taken--> leads --not renewed in time--> (follows)
//	    ^                        |
//	    +------ Run ends: the lease is given back, after all elected components have stopped
//
// Elect makes a component run during terms only. Fence makes a client write during terms only: a late write of a
// component, after another server may have taken over, does not reach the API.
package election

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
)

// Name is the component's.
const Name = "election"

// Timing of the Lease. The zero value means DefaultTiming.
type Timing struct {
	// Lease is how long other servers wait for the leader before one of them takes over.
	Lease time.Duration
	// Renew is how long the leader tries to renew before its term ends. Its components have the rest of Lease to stop.
	Renew time.Duration
	// Retry is the time between two tries, of the leader and of followers.
	Retry time.Duration
}

// DefaultTiming returns the timing of a Lease that costs one write every 5 s.
func DefaultTiming() Timing {
	return Timing{Lease: 30 * time.Second, Renew: 20 * time.Second, Retry: 5 * time.Second}
}

// on returns the timing for a disk with syncs of this length: a write of the Lease is at least four syncs. Followers
// take the duration from the Lease, whatever their own disk is like.
func (t Timing) on(sync time.Duration) Timing {
	return Timing{Lease: max(t.Lease, 24*sync), Renew: max(t.Renew, 16*sync), Retry: max(t.Retry, 4*sync)}
}

// alone returns the timing where no other server can lead. There, a Lease that is not renewed in time means that this
// machine is slow; ending the term would give it more work, and no server would take over.
func (t Timing) alone() Timing {
	return Timing{Lease: 6 * t.Lease, Renew: 6 * t.Renew, Retry: t.Retry}
}

// Options configures the component. All fields without a stated default are required.
type Options struct {
	// Client gets, creates and updates the Lease.
	Client *rest.Config
	// Identity is this server's, unique in the cluster. It survives a restart, so that a restarted server leads again
	// at once.
	Identity string
	// Timing is DefaultTiming unless set.
	Timing Timing
	// Alone reports whether no other server uses this one's data; that may change. Nil: others do.
	Alone func() bool
	// SlowSync returns how long a sync on the API's disk takes, if that is long, else 0. Nil: the disk is not slow.
	SlowSync func() time.Duration
	// Log receives changes of the leader.
	Log logrus.FieldLogger
}

// Election is the component.
type Election struct {
	opts Options

	changed reconcile.Broadcast // when term or other has changed

	mu      sync.Mutex
	term    context.Context // of the last term; nil before the first
	other   bool            // another server was seen to lead
	valid   context.Context // ends when others may lead; nil before the first term
	expire  *time.Timer     // ends valid
	overdue *time.Timer     // ends a term that began when this server was alone; nil before Run
}

var _ lifecycle.Component = (*Election)(nil)

// New returns the component; nothing is touched before Run.
func New(o Options) *Election {
	if o.Timing == (Timing{}) {
		o.Timing = DefaultTiming()
	}
	return &Election{opts: o}
}

// Name implements lifecycle.Component.
func (e *Election) Name() string { return Name }

// Needs implements lifecycle.Component.
func (e *Election) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter. Two would both renew the Lease.
func (*Election) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Run implements lifecycle.Component. It is ready when the leader is known.
func (e *Election) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(e.opts.Client)
	if err != nil {
		return err
	}
	if e.opts.SlowSync != nil {
		e.opts.Timing = e.opts.Timing.on(e.opts.SlowSync())
	}
	return e.run(ctx, cs, ready)
}

func (e *Election) run(ctx context.Context, cs kubernetes.Interface, ready func()) error {
	lock := &lease{Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: names.Lease},
		Client:     cs.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.opts.Identity},
	}, election: e}
	for ctx.Err() == nil {
		var led atomic.Bool
		timing := e.timing()
		round, stop := context.WithCancel(ctx)
		e.mu.Lock()
		e.overdue = time.AfterFunc(timing.Lease, stop)
		e.overdue.Stop() // until the Lease is written
		e.mu.Unlock()
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name:          names.Lease,
			Lock:          lock,
			LeaseDuration: timing.Lease,
			RenewDeadline: timing.Renew,
			RetryPeriod:   timing.Retry,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(term context.Context) { led.Store(true); e.begin(term); ready() },
				OnStoppedLeading: func() {},
				OnNewLeader: func(identity string) {
					if identity != "" && identity != e.opts.Identity {
						e.follow(identity)
						ready()
					}
				},
			},
		})
		if err != nil {
			stop()
			return err
		}
		elector.Run(round)
		stop()
		if led.Load() && ctx.Err() == nil {
			e.opts.Log.Warnf("cannot renew Lease %s/%s within %s: this server no longer leads, and stops its cluster-wide components",
				metav1.NamespaceSystem, names.Lease, e.timing().Renew)
		}
	}
	if !lifecycle.Restarting(ctx) { // otherwise elected components run on
		e.release(lock)
	}
	return nil
}

// timing returns the current one.
func (e *Election) timing() Timing {
	if e.opts.Alone != nil && e.opts.Alone() {
		return e.opts.Timing.alone()
	}
	return e.opts.Timing
}

// begin is called when this server leads, until term ends.
func (e *Election) begin(term context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term, e.other = term, false
	e.changed.Send()
}

// follow is called when another server leads.
func (e *Election) follow(leader string) {
	e.opts.Log.Infof("server %s is the leader", leader)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.other = true
	e.changed.Send()
}

// await returns the context of this server's term once it has one, or the error of ctx. It calls standby when another
// server leads.
func (e *Election) await(ctx context.Context, standby func()) (context.Context, error) {
	for {
		changed := e.changed.Next()
		e.mu.Lock()
		term, other := e.term, e.other
		e.mu.Unlock()
		if term != nil && term.Err() == nil {
			return term, nil
		}
		if other {
			standby()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// renewed is called after a write of the Lease by a request that began at that time.
func (e *Election) renewed(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	timing := e.timing()
	left := time.Until(at.Add(timing.Lease))
	if e.overdue != nil {
		e.overdue.Stop()
		if timing == e.opts.Timing { // with others: upstream's elector may still have the timeout of a lone server
			e.overdue.Reset(time.Until(at.Add(timing.Renew + timing.Retry)))
		}
	}
	if e.valid != nil && e.valid.Err() == nil {
		e.expire.Reset(left)
		return
	}
	valid, end := context.WithCancelCause(context.Background())
	e.valid, e.expire = valid, time.AfterFunc(left, func() { end(errNotLeader) })
	if left <= 0 {
		end(errNotLeader)
	}
}

// leads returns a context that ends when another server may lead; it has already ended when this server does not lead.
func (e *Election) leads() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.valid
}

// release lets another server lead at once. The elected components have stopped.
func (e *Election) release(lock *lease) {
	e.mu.Lock()
	leading := e.valid != nil && e.valid.Err() == nil
	e.mu.Unlock()
	if !leading {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err := lock.release(ctx); err != nil {
		e.opts.Log.Debugf("cannot release the Lease: %v", err)
	}
}

// releaseTimeout bounds the last write; without it the others wait until the Lease expires.
const releaseTimeout = 2 * time.Second

// lease is the Lease; it reports each write to the election.
type lease struct {
	resourcelock.Interface
	election *Election
}

// Create implements resourcelock.Interface.
func (l *lease) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	r = l.current(r)
	return l.write(func() error { return l.Interface.Create(ctx, r) })
}

// current gives a record of this server the duration that applies now: others take it from the Lease.
func (l *lease) current(r resourcelock.LeaderElectionRecord) resourcelock.LeaderElectionRecord {
	if seconds := int(l.election.timing().Lease / time.Second); r.HolderIdentity != "" && seconds > 0 {
		r.LeaseDurationSeconds = seconds
	}
	return r
}

// Update implements resourcelock.Interface.
func (l *lease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	r = l.current(r)
	return l.write(func() error { return l.Interface.Update(ctx, r) })
}

func (l *lease) write(do func() error) error {
	began := time.Now()
	err := do()
	if err == nil {
		l.election.renewed(began)
	}
	return err
}

// release clears the holder of the Lease. Upstream's ReleaseOnCancel would also do so after a failed renewal, while the
// elected components still stop.
func (l *lease) release(ctx context.Context) error {
	record, _, err := l.Get(ctx)
	if err != nil {
		return err
	}
	if record.HolderIdentity != l.Identity() {
		return errNotLeader
	}
	now := metav1.Now()
	return l.Interface.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
	})
}

var errNotLeader = errors.New("another server may lead the cluster: refusing to write")
