package recorder

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/record"
)

const (
	// sendTimeout bounds one request.
	sendTimeout = 10 * time.Second
	// trips is how many round trips the clock's offset is estimated from. Two clocks drift apart by some milliseconds
	// in tripAge; a node that was idle for longer makes pings, without records, first.
	trips, tripAge, pings = 8, 2 * time.Minute, 3
)

// sender sends records to the server. Those that it cannot send stay in the store, within its bounds.
type sender struct {
	from *record.Store
	node string
	post func(ctx context.Context, b *record.Batch) (record.Reply, error)
	log  logrus.FieldLogger

	sent   uint64 // the last Seq that the server has
	store  string // the server's store, empty: unknown
	limit  int    // of records in a batch
	offset offset
}

// run sends what is recorded until ctx ends.
func (s *sender) run(ctx context.Context) {
	var said logging.Once
	s.from.Feed(ctx, func() uint64 { return s.sent }, s.send, func(err error) {
		if err == nil {
			said.News("", "")
		} else if said.News("", err.Error()) {
			s.log.Debugf("cannot send records to the server, retrying: %v", err) // another component reports whether it is up
		}
	})
}

// send sends one batch.
func (s *sender) send(ctx context.Context) error {
	records, next := s.from.Since(s.sent, s.limit)
	if len(records) == 0 {
		s.sent = next
		return nil
	}
	for range pings - s.offset.recent(s.from.Clock().Now()) {
		if _, err := s.exchange(ctx, nil); err != nil {
			return err
		}
	}
	reply, err := s.exchange(ctx, records)
	if _, ok := err.(api.TooLarge); ok && len(records) > 1 {
		s.limit = max(1, len(records)/2)
		return s.send(ctx)
	} else if ok {
		s.sent = next // one that can never be sent
		return nil
	}
	if err != nil {
		return err
	}
	s.limit = record.MaxBatch
	if s.store != "" && reply.Store != s.store {
		next = 0
	}
	s.sent, s.store = next, reply.Store
	return nil
}

// exchange sends records, or none, and takes the server's clock from the answer.
func (s *sender) exchange(ctx context.Context, records []record.Record) (record.Reply, error) {
	clock := s.from.Clock()
	b := record.Batch{Node: s.node, Sent: clock.Now(), Records: records}
	b.Offset, b.Estimated = s.offset.estimate()
	reply, err := s.post(ctx, &b)
	if err == nil {
		s.offset.add(b.Sent, clock.Now(), reply.Now)
	}
	return reply, err
}

// offset estimates by how much this clock is behind the server's, as NTP does: an answer with the server's time t to a
// request that took d puts the offset within d/2 of t minus the middle of the request. The shortest is the most exact.
type offset struct{ trips []trip }

type trip struct {
	took, behind time.Duration
	at           int64
}

// add adds a round trip: the times of sending and receiving on this clock, and the server's in between.
func (o *offset) add(sent, received, server int64) {
	took := received - sent
	o.recent(received)
	o.trips = append(o.trips, trip{time.Duration(took), time.Duration(server - sent - took/2), received})
	o.trips = o.trips[max(0, len(o.trips)-trips):]
}

// recent forgets the round trips that are too old, and returns how many remain.
func (o *offset) recent(now int64) int {
	o.trips = slices.DeleteFunc(o.trips, func(t trip) bool { return now-t.at > int64(tripAge) })
	return len(o.trips)
}

// estimate returns the offset; ok is false without a round trip.
func (o *offset) estimate() (behind time.Duration, ok bool) {
	if len(o.trips) == 0 {
		return 0, false
	}
	return slices.MinFunc(o.trips, func(a, b trip) int { return cmp.Compare(a.took, b.took) }).behind, true
}
