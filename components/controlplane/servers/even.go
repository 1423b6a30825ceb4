package servers

import "time"

// even notices that the cluster keeps an even number of servers: one more, or one less, survives as much.
type even struct {
	votes int
	since time.Time
	told  bool
}

// watch reports, once for each number, that it is time for a warning. Only the server whose etcd leads warns.
func (e *even) watch(votes int, leads bool, now time.Time) bool {
	if votes != e.votes {
		*e = even{votes: votes, since: now}
	}
	if votes%2 != 0 || !leads || e.told || now.Sub(e.since) < evenAfter {
		return false
	}
	e.told = true
	return true
}
