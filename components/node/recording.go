package node

import (
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"
	"k8s.io/kubernetes/pkg/volume"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/worker/containerd"
	"kubelith.io/kubelith/runtime/cgroups"
	"kubelith.io/kubelith/trace/record"
	"kubelith.io/kubelith/trace/spans"
)

// newRecord returns the flight recorder; nil if it is switched off.
func newRecord(cfg *config.Node) *record.Store {
	o := cfg.Trace()
	if o == nil {
		return nil
	}
	return record.NewStore(*o)
}

// recording is what the components of a node record to; nil if the flight recorder is switched off.
type recording struct{ source *spans.Source }

// nodeRecords returns the recording of this machine's node.
func (h *machine) nodeRecords(node string) *recording {
	if h.record == nil {
		return nil
	}
	return &recording{spans.New(record.At(h.record, node), h.record.Clock())}
}

// calls returns the handler of the calls to containerd.
func (r *recording) calls() stats.Handler {
	if r == nil {
		return nil
	}
	return r.source.Handler()
}

// ended returns what takes the memory of containers that have ended.
func (r *recording) ended() containerd.Ended {
	if r == nil {
		return nil
	}
	return func(id string, m cgroups.Memory) { r.source.Used(id, m.Peak, m.Kills > 0) }
}

// kubelet returns the kubelet's option Trace.
func (r *recording) kubelet() func(trace.TracerProvider) trace.TracerProvider {
	if r == nil {
		return nil
	}
	return r.source.Provider
}

// volumes returns the kubelet's option Volumes.
func (r *recording) volumes() func([]volume.VolumePlugin) []volume.VolumePlugin {
	if r == nil {
		return nil
	}
	return r.source.VolumePlugins
}

// csi returns the handlers of the calls to CSI drivers.
func (r *recording) csi() func(driver string) stats.Handler {
	if r == nil {
		return nil
	}
	return r.source.CSI
}
