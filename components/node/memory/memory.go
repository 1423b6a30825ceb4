// Package memory keeps the memory of the process low: it sets the pace of the garbage collector, which collects little
// during a start and under load, returns memory that is no longer needed to the system, and drops the pages of the
// program that only the start has read. The measurements are in docs/performance-log.md.
//
// It sets the state of the whole process, as components/node/startup does before main.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// gcPercent is how much the heap may grow over the live heap before it is collected. With Go's default of 100 a
	// process holds twice its live heap. An idle cluster's heap is mostly long-lived caches, so collecting more often
	// costs little; load raises the percentage. The environment variable GOGC takes precedence.
	gcPercent = 50
	// startGCPercent applies until everything is ready: during a start, gcPercent costs a third of the CPU and saves
	// less memory than a running cluster holds.
	startGCPercent = 400
	// settleAfter is how many times measureLoad without load pass before the memory that the start, or the load, needed
	// is returned to the system. The runtime alone keeps it for two collections more: minutes of an idle process.
	settleAfter = 30
	// forgetAfter is when memory is returned again: by then, the API server's watch caches have forgotten the events of
	// the load, which they keep for 75 to 90 s.
	forgetAfter = 120
	// dropEvery is how many times measureLoad pass without load between two times that the pages of the program are
	// dropped: an election or a refused request maps some again, and nothing else would ever drop them.
	dropEvery = 300
)

// BeginStart makes the garbage collector run rarely, until Follow finds that the start is over.
func BeginStart() { setGCPercent(startGCPercent) }

func setGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

const (
	// measureLoad is how often the rate of allocation is measured.
	measureLoad = time.Second
	// collectEvery is how many seconds should pass between two collections under load. Fifty pods that start allocate
	// some 100 MB/s; with gcPercent a quarter of the process's CPU was garbage collection.
	collectEvery = 10
	// headroom is how many bytes the heap may grow by under load, unless gcPercent of the live heap is more. A large
	// heap that doubles keeps much of that: what is live afterwards is spread over all of it.
	headroom = 256 << 20
	// headroomShare: the headroom is at most this part of the memory that the process may use, an eighth.
	headroomShare = 8
)

// load derives the percentage of the garbage collector from the rate of allocation.
type load struct {
	memory    uint64 // that the process may use, bytes; 0 is unknown
	allocated uint64 // since the start of the process, bytes
	rate      uint64 // bytes per measureLoad, falling slowly
}

// percent is called once every measureLoad, with the bytes allocated since the start of the process and those that
// the last collection found in use. busy reports whether so much is allocated that the heap would double in
// collectEvery; a large heap may not grow by more for that.
func (l *load) percent(allocated, live uint64) (percent int, busy bool) {
	l.rate = max(allocated-l.allocated, l.rate*3/4)
	l.allocated = allocated
	live = max(live, 1<<20)
	wanted := l.rate * collectEvery
	room := min(wanted, headroom)
	if l.memory > 0 {
		room = min(room, l.memory/headroomShare)
	}
	// In steps, since each change stops all goroutines for a moment.
	steps := room * 100 / live / gcPercent
	return max(gcPercent, int(steps)*gcPercent), wanted >= live
}

// Follow lowers the memory of the process once it has started, and collects less often while much is allocated, until
// ctx ends; see docs/performance-log.md. It returns memory to the system after the start and after each load.
func Follow(ctx context.Context, started <-chan struct{}, log logrus.FieldLogger) {
	select {
	case <-started:
	case <-ctx.Done():
		return
	}
	setGCPercent(gcPercent)
	tick := time.NewTicker(measureLoad)
	defer tick.Stop()
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	l := load{memory: limit(os.DirFS("/")), allocated: sample[0].Value.Uint64()}
	for now, quiet := gcPercent, 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		metrics.Read(sample)
		percent, busy := l.percent(sample[0].Value.Uint64(), sample[1].Value.Uint64())
		if percent != now {
			setGCPercent(percent)
			now = percent
		}
		if quiet++; busy {
			quiet = 0
		}
		if quiet == settleAfter || quiet == forgetAfter {
			debug.FreeOSMemory()
		}
		if quiet%dropEvery == settleAfter {
			if err := dropProgram(); err != nil {
				log.WithError(err).Debug("the pages of the program that only its start needed stay in memory")
			}
		}
	}
}
