// Package spans records what a node does for its pods: the kubelet's syncs and the calls to the container runtime.
//
// Both come from upstream's own tracing, in the process and without an exporter:
//
//   - The kubelet takes a TracerProvider and starts the spans syncPod, syncTerminatingPod and syncTerminatedPod, which
//     name the pod. Source.Provider records these, and passes everything on to the provider that the user configured,
//     if any.
//   - The CRI server takes a gRPC stats handler where it would put OpenTelemetry's. Source.Handler sees each request
//     with its answer: the exit code of a probe is in no span. It puts a span into the context of a call, so that
//     containerd's own spans and attributes add details: the CNI's share of a sandbox, the size of an image.
//
// The calls to CSI drivers in plugin processes go through this process too, and Source.CSI sees them. Those to drivers
// in pods do not: Source.VolumePlugins wraps the kubelet's volume plugin for CSI, which makes them.
//
// The kubelet's CRI client sends the ID of a sync's trace along (W3C traceparent), so a call belongs to a sync, or to
// none: a command that runs in a container is a hook in a sync, and else a probe. What concerns no pod, such as the
// lists that the kubelet requests each second, costs a comparison.
//
// Records have names, results and messages only: never a command, an environment or a credential.
package spans

import (
	"hash/maphash"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"kubelith.io/kubelith/trace/record"
)

// pods is the resource of all records here.
const pods = "pods"

// Source records what happens on a node.
type Source struct {
	sink  record.Sink
	clock record.Clock
	seed  maphash.Seed

	mu         sync.Mutex
	syncs      map[trace.TraceID]*syncSpan // that run
	sandboxes  map[string]*sandbox         // by ID
	containers map[string]*container       // by ID
	volumes    volumes
	unknown    bool // a sandbox or container came up that is in neither: learn from the next lists
}

// sandbox is what calls on a sandbox say only at its creation.
type sandbox struct {
	pod     record.Ref
	stopped bool
}

// container is the same for a container.
type container struct {
	pod      record.Ref
	name     string
	started  trace.TraceID // the sync that started it
	ended    bool          // its end is recorded
	peak     int64         // of its memory, in bytes, once it has ended; 0: unknown
	oom      bool          // the kernel has killed in it for memory
	stopping bool
	probes   map[uint64]int // the last result of each command
}

// New returns a Source. clock is that of the store that sink writes to.
func New(sink record.Sink, clock record.Clock) *Source {
	return &Source{
		sink: sink, clock: clock, seed: maphash.MakeSeed(),
		syncs: map[trace.TraceID]*syncSpan{}, sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
		volumes: newVolumes(),
		unknown: true, // what ran before this process did
	}
}

// running returns the sync with a trace ID; nil: none.
func (s *Source) running(id trace.TraceID) *syncSpan {
	if !id.IsValid() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.syncs[id]
}
