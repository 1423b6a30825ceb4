package election

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"kubelith.io/kubelith/base/lifecycle"
)

var quick = Timing{Lease: 900 * time.Millisecond, Renew: 500 * time.Millisecond, Retry: 50 * time.Millisecond}

// cluster is an API with one Lease, which refuses writes that are not based on the last one, as the real one does.
type cluster struct {
	*fake.Clientset
	mu      sync.Mutex
	version int
	away    atomic.Bool
}

func newCluster() *cluster {
	c := &cluster{Clientset: fake.NewClientset()}
	c.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if c.away.Load() {
			return true, nil, errors.New("no API")
		}
		update, ok := a.(clienttesting.UpdateAction)
		if !ok {
			return false, nil, nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		lease := update.GetObject().(*coordinationv1.Lease)
		if has := fmt.Sprint(c.version); lease.ResourceVersion != has && lease.ResourceVersion != "" {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, lease.Name, errors.New("it is "+has))
		}
		c.version++
		lease.ResourceVersion = fmt.Sprint(c.version)
		return false, nil, nil
	})
	return c
}

// server is an election with one elected component.
type server struct {
	*Election
	*worker
	cancel context.CancelFunc
	ended  chan struct{}
}

func (c *cluster) server(t *testing.T, name string, acting *acting) *server {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := &server{Election: New(Options{Identity: name, Timing: quick, Log: log}), worker: &worker{acting: acting}, ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	group, err := lifecycle.NewGroup(lifecycle.Options{Log: log, StopTimeout: 5 * time.Second}, running{s.Election, c}, s.Elect(s.worker))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		if err := group.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-s.ended })
	return s
}

// running is an Election on a fake API.
type running struct {
	*Election
	cluster *cluster
}

func (r running) Needs() []string { return nil }

func (r running) Run(ctx context.Context, ready func()) error { return r.run(ctx, r.cluster, ready) }

// acting counts those that act at the same time.
type acting struct{ now, most atomic.Int32 }

func (a *acting) begin() {
	if n := a.now.Add(1); n > a.most.Load() {
		a.most.Store(n)
	}
}

// worker is a component that acts while it runs.
type worker struct {
	acting  *acting
	runs    atomic.Int32
	standby atomic.Bool
	fails   atomic.Bool
}

func (w *worker) Name() string    { return "worker" }
func (w *worker) Needs() []string { return nil }
func (w *worker) Standby()        { w.standby.Store(true) }

func (w *worker) Run(ctx context.Context, ready func()) error {
	w.acting.begin()
	defer w.acting.now.Add(-1)
	w.runs.Add(1)
	ready()
	<-ctx.Done()
	if w.fails.Load() {
		return errors.New("its writes are refused")
	}
	return nil
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// TestOneLeads: of two servers one acts, the other when the first has stopped, and never both.
func TestOneLeads(t *testing.T) {
	c, acting := newCluster(), &acting{}
	a := c.server(t, "a", acting)
	eventually(t, "a acts", func() bool { return a.runs.Load() == 1 })
	b := c.server(t, "b", acting)
	eventually(t, "b stands by", b.standby.Load)
	if b.runs.Load() != 0 {
		t.Fatal("b acts while a leads")
	}
	a.cancel()
	<-a.ended
	eventually(t, "b acts", func() bool { return b.runs.Load() == 1 })
	if most := acting.most.Load(); most != 1 {
		t.Errorf("%d acted at the same time", most)
	}
	if a.standby.Load() {
		t.Error("a stood by without another leader")
	}
}

// TestLostLease: a term ends without the API, writes stop, and the next term is another run; the process goes on.
func TestLostLease(t *testing.T) {
	c, acting := newCluster(), &acting{}
	a := c.server(t, "a", acting)
	a.fails.Store(true) // at the end of a term: no failure of the component
	eventually(t, "a acts", func() bool { return a.runs.Load() == 1 })
	sent := &sent{}
	write := request(t, a.Election, sent)
	if err := write(http.MethodPost); err != nil || sent.n.Load() != 1 {
		t.Fatalf("a write of the leader: %v, sent %d", err, sent.n.Load())
	}
	c.away.Store(true)
	eventually(t, "the term is over", func() bool { return acting.now.Load() == 0 })
	eventually(t, "writes are refused", func() bool { return errors.Is(write(http.MethodPatch), errNotLeader) })
	before := sent.n.Load()
	if err := write(http.MethodDelete); !errors.Is(err, errNotLeader) || sent.n.Load() != before {
		t.Errorf("a late write: %v, sent %d more", err, sent.n.Load()-before)
	}
	if err := write(http.MethodGet); err != nil {
		t.Errorf("a late read: %v", err)
	}
	c.away.Store(false)
	eventually(t, "a acts again", func() bool { return a.runs.Load() == 2 && acting.now.Load() == 1 })
	if err := write(http.MethodPut); err != nil {
		t.Errorf("a write in the next term: %v", err)
	}
	a.fails.Store(false) // the end of the process is no end of a term
	select {
	case <-a.ended:
		t.Error("the process ended with the term")
	default:
	}
}

// TestSlowWrite: a write that is under way when another server may lead is cancelled.
func TestSlowWrite(t *testing.T) {
	c, acting := newCluster(), &acting{}
	a := c.server(t, "a", acting)
	eventually(t, "a acts", func() bool { return a.runs.Load() == 1 })
	sent := &sent{hold: true}
	done := make(chan error)
	go func() { done <- request(t, a.Election, sent)(http.MethodPost) }()
	eventually(t, "the write is under way", func() bool { return sent.n.Load() == 1 })
	c.away.Store(true)
	if err := <-done; !errors.Is(err, errNotLeader) {
		t.Errorf("the write ended with %v", err)
	}
}

// TestRestart: a server that was killed while it led, and comes back, does not wait for the end of its own Lease.
func TestRestart(t *testing.T) {
	c, acting := newCluster(), &acting{}
	long := New(Options{Identity: "a", Log: logrus.New(), Timing: Timing{Lease: time.Hour, Renew: time.Minute, Retry: 10 * time.Millisecond}})
	ctx, kill := context.WithCancel(t.Context())
	led := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = long.run(ctx, c, func() { close(led) })
	}()
	<-led
	c.away.Store(true) // nothing is given back
	kill()
	<-ended
	c.away.Store(false)
	a := c.server(t, "a", acting)
	eventually(t, "a acts again", func() bool { return a.runs.Load() == 1 })
}

// TestFailure: what fails within its term is a failure of the component.
func TestFailure(t *testing.T) {
	e := New(Options{Identity: "a", Log: logrus.New()})
	e.begin(t.Context())
	broken := errors.New("broken")
	err := e.Elect(failing{broken}).Run(t.Context(), func() {})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if needs := strings.Join(e.Elect(failing{}).Needs(), " "); needs != "election etcd" {
		t.Errorf("it needs %s", needs)
	}
}

// TestStopAfterTerm: a component that fails because its term is over is no failure of a server that stops meanwhile.
func TestStopAfterTerm(t *testing.T) {
	e := New(Options{Identity: "a", Log: logrus.New()})
	term, over := context.WithCancel(t.Context())
	e.begin(term)
	ctx, stop := context.WithCancel(t.Context())
	if err := e.Elect(outdated{over, stop}).Run(ctx, func() {}); err != nil {
		t.Errorf("the stop fails: %v", err)
	}
}

// outdated is a component that sees its term end and the server stop, and fails.
type outdated struct{ over, stop func() }

func (outdated) Name() string    { return "outdated" }
func (outdated) Needs() []string { return nil }
func (o outdated) Run(ctx context.Context, _ func()) error {
	o.over()
	<-ctx.Done()
	o.stop()
	return errNotLeader
}

type failing struct{ err error }

func (failing) Name() string                            { return "failing" }
func (failing) Needs() []string                         { return []string{"etcd"} }
func (f failing) Run(_ context.Context, _ func()) error { return f.err }

// sent is an API that counts requests and, with hold, answers when they are cancelled.
type sent struct {
	n    atomic.Int32
	hold bool
}

func (s *sent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.n.Add(1)
	if s.hold {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// request sends requests through the fence.
func request(t *testing.T, e *Election, to http.RoundTripper) func(method string) error {
	t.Helper()
	c := e.fence(&rest.Config{Transport: to})
	way, err := rest.TransportFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return func(method string) error {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://api/", nil)
		if err != nil {
			return err
		}
		answer, err := way.RoundTrip(r)
		if err == nil {
			answer.Body.Close()
		}
		return err
	}
}

// TestSlowDisk: a lone server whose disk is slow does not lose its term for that, and on another one nothing changes.
func TestSlowDisk(t *testing.T) {
	if got := DefaultTiming().on(500 * time.Millisecond); got != DefaultTiming() {
		t.Errorf("500 ms for a sync: %+v", got)
	}
	slow := DefaultTiming().on(5 * time.Second)
	if slow.Renew < 60*time.Second || slow.Lease <= slow.Renew || slow.Retry*2 > slow.Renew {
		t.Errorf("5 s for a sync: %+v", slow)
	}
}

// TestAlone: where no other server can lead, a machine that is too slow to renew the Lease for a while keeps its term.
func TestAlone(t *testing.T) {
	c := newCluster()
	for _, alone := range []bool{false, true} {
		term, ended := context.WithCancel(t.Context())
		log := logrus.New()
		log.SetOutput(io.Discard)
		e := New(Options{Identity: "a", Timing: quick, Alone: func() bool { return alone }, Log: log})
		ready := make(chan struct{})
		var once sync.Once
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := e.run(term, c, func() { once.Do(func() { close(ready) }) }); err != nil {
				t.Error(err)
			}
		}()
		<-ready
		led, err := e.await(t.Context(), func() {})
		if err != nil {
			t.Fatal(err)
		}
		c.away.Store(true)
		wait := 2 * quick.Renew
		if !alone {
			wait = 20 * time.Second
		}
		select {
		case <-led.Done():
			if alone {
				t.Error("the term of a server that is alone ended")
			}
		case <-time.After(wait):
			if !alone {
				t.Error("the term did not end")
			}
		}
		c.away.Store(false)
		ended()
		<-done
	}
}

// TestNotAloneAnyMore: a term that began when no other server could lead ends in the time of several servers, and the
// Lease has that duration as soon as another server joins.
func TestNotAloneAnyMore(t *testing.T) {
	c := newCluster()
	var others atomic.Bool
	log := logrus.New()
	log.SetOutput(io.Discard)
	timing := Timing{Lease: 2 * time.Second, Renew: 500 * time.Millisecond, Retry: 50 * time.Millisecond}
	e := New(Options{Identity: "a", Timing: timing, Alone: func() bool { return !others.Load() }, Log: log})
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.run(ctx, c, func() {}); err != nil {
			t.Error(err)
		}
	}()
	led, err := e.await(t.Context(), func() {})
	if err != nil {
		t.Fatal(err)
	}
	seconds := func(want int32) {
		t.Helper()
		for range 100 {
			lease, err := c.CoordinationV1().Leases("kube-system").Get(t.Context(), "kubelith", metav1.GetOptions{})
			if err == nil && *lease.Spec.LeaseDurationSeconds == want {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("the Lease never lasted %d s", want)
	}
	seconds(12)
	others.Store(true)
	seconds(2)
	if led.Err() != nil {
		t.Error("the term ended when another server joined")
	}
	c.away.Store(true)
	select {
	case <-led.Done():
	case <-time.After(10 * timing.Renew): // alone it would be 6 times as long, and upstream's elector is made for that
		t.Error("the term did not end")
	}
	c.away.Store(false)
	if again, err := e.await(t.Context(), func() {}); err != nil || again.Err() != nil {
		t.Error("it does not lead again")
	}
	end()
	<-done
}
