package record

import "time"

// Clock gives the times of records: the wall clock's at the start of the process, and from then on the monotonic clock,
// so that records stay in order when the system clock is set.
type Clock struct {
	wall int64
	base time.Time
}

// NewClock returns a clock that starts now.
func NewClock() Clock {
	now := time.Now()
	return Clock{wall: now.UnixNano(), base: now}
}

// At returns the time of t, in nanoseconds. t must come from time.Now in this process; without a monotonic part it is
// taken as it is.
func (c Clock) At(t time.Time) int64 { return c.wall + int64(t.Sub(c.base)) }

// Now returns the time.
func (c Clock) Now() int64 { return c.At(time.Now()) }

// Set returns by how much the wall clock was set since the process began: positive when it was set forward.
func (c Clock) Set() time.Duration {
	now := time.Now()
	return time.Duration(now.UnixNano() - c.At(now))
}
