package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/record"
)

func silent() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

func add(s *record.Store, n int) {
	for i := range n {
		s.Add(record.Record{Object: record.Ref{UID: fmt.Sprint("u", i%7), Resource: "pods"}, Stage: record.Create, Name: fmt.Sprint(i), Start: s.Clock().Now()})
	}
}

// server is a server's side of the records.
type server struct {
	mu      sync.Mutex
	store   string
	fail    error
	batches []*record.Batch
	pings   int           // batches without records
	behind  time.Duration // of the sender
}

func (s *server) post(_ context.Context, b *record.Batch) (record.Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return record.Reply{}, s.fail
	}
	if len(b.Records) == 0 {
		s.pings++
	} else {
		s.batches = append(s.batches, b)
	}
	return record.Reply{Now: b.Sent + int64(s.behind), Store: s.store}, nil
}

// set changes it between two requests.
func (s *server) set(change func()) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *server) sent() []*record.Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batches
}

func (s *server) pinged() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pings
}

func (s *server) records() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		n += len(b.Records)
	}
	return n
}

func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := record.NewStore(record.Options{})
		far := &server{store: "1", behind: time.Hour}
		s := &sender{from: store, node: "node-1", post: far.post, log: silent(), limit: record.MaxBatch}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.run(ctx) }()
		defer func() { stop(); <-ended }()

		time.Sleep(time.Hour)
		if synctest.Wait(); len(far.sent()) != 0 {
			t.Fatalf("%d batches of nothing", len(far.sent()))
		}
		add(store, 3)
		synctest.Wait()
		add(store, 2)
		if synctest.Wait(); len(far.sent()) != 1 {
			t.Fatalf("%d batches at once, want one in a second", len(far.sent()))
		}
		if first := far.sent()[0]; !first.Estimated || first.Offset != time.Hour || first.Node != "node-1" || far.pinged() != pings {
			t.Errorf("after %d pings, the first batch says %+v", far.pinged(), first)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := far.records(); n != 5 || len(far.sent()) != 2 {
			t.Fatalf("%d records in %d batches, want 5 in 2", n, len(far.sent()))
		}
		far.set(func() { far.behind, far.pings = 2*time.Hour, 0 })
		time.Sleep(time.Hour) // without records
		add(store, 1)
		time.Sleep(time.Second)
		if synctest.Wait(); far.pinged() != pings || far.sent()[2].Offset != 2*time.Hour {
			t.Errorf("after an hour there were %d pings, and the estimate is %s", far.pinged(), far.sent()[2].Offset)
		}

		far.set(func() { far.fail = errors.New("away") })
		add(store, 4)
		time.Sleep(10 * time.Minute)
		far.set(func() { far.fail = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := far.records(); n != 10 {
			t.Errorf("%d records after the server was away, want all 10", n)
		}

		far.set(func() { far.store, far.batches = "2", nil })
		add(store, 1)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := far.records(); n != 12 { // the one that showed that the server is another, and all eleven
			t.Errorf("another server has %d records, want 12", n)
		}
	})
}

func TestLargeBatch(t *testing.T) {
	store := record.NewStore(record.Options{})
	add(store, 10)
	var sizes []int
	s := &sender{from: store, log: silent(), limit: record.MaxBatch, post: func(_ context.Context, b *record.Batch) (record.Reply, error) {
		if len(b.Records) > 3 || slices.ContainsFunc(b.Records, func(r record.Record) bool { return r.Name == "9" }) {
			return record.Reply{}, api.TooLarge(1)
		}
		sizes = append(sizes, len(b.Records))
		return record.Reply{}, nil
	}}
	for range 20 {
		if err := s.send(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var sent int
	for _, n := range sizes {
		sent += n
	}
	if sent != 9 {
		t.Errorf("sent %v, want all but the one that is too large", sizes)
	}
}

func TestOffset(t *testing.T) {
	var o offset
	if _, ok := o.estimate(); ok {
		t.Error("an estimate of nothing")
	}
	const ms = int64(time.Millisecond)
	o.add(0, 100*ms, 5000*ms)        // 4950 ms behind, within 50
	o.add(1000*ms, 1002*ms, 6001*ms) // 5000 ms behind, within 1
	o.add(2000*ms, 2400*ms, 7350*ms) // slow
	if got, _ := o.estimate(); got != 5*time.Second {
		t.Errorf("the estimate is %s, want that of the shortest trip", got)
	}
	for range trips {
		o.add(0, 300*ms, 350*ms)
	}
	if got, _ := o.estimate(); got != 200*time.Millisecond {
		t.Errorf("the estimate is %s, want that of the last trips", got)
	}
}

func TestPost(t *testing.T) {
	got := record.Batch{}
	answered := make(chan struct{})
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != record.Path || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s with %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
		}
		var b record.Batch
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(record.Reply{Now: 7, Store: "s"})
		if len(b.Records) > 0 {
			got = b
			close(answered)
		}
	}))
	defer answers.Close()
	store := record.NewStore(record.Options{})
	add(store, 1)
	s := New(Options{Record: store, NodeName: "node-1", Client: &rest.Config{Host: answers.URL}, Log: silent()})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx, func() {}) }()
	<-answered
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got.Node != "node-1" || len(got.Records) != 1 {
		t.Errorf("the server got %+v", got)
	}
	huge := &record.Batch{Node: strings.Repeat("x", record.MaxBody)}
	if _, err := s.sender.post(t.Context(), huge); !errors.As(err, new(api.TooLarge)) {
		t.Errorf("a batch over the limit: %v", err)
	}
}

func TestOff(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	ready := false
	if err := New(Options{Client: &rest.Config{}, Log: silent()}).Run(ctx, func() { ready = true }); err != nil || !ready {
		t.Errorf("without a recorder: %v, ready %v", err, ready)
	}
}
