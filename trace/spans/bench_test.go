package spans

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubelith.io/kubelith/trace/record"
)

// benchNode is a node that records to a store.
func benchNode() (*node, *record.Store) {
	store := record.NewStore(record.Options{})
	n := &node{source: New(record.At(store, "node-1"), store.Clock())}
	n.kubelet = n.source.Provider(noop.NewTracerProvider()).Tracer("kubelet")
	n.source.unknown = false
	return n, store
}

// BenchmarkCall is a call to the CRI that becomes a record, with what gRPC does around the handler left out.
func BenchmarkCall(b *testing.B) {
	n, _ := benchNode()
	n.sync(syncPod, "create", nil, func(ctx context.Context) {
		n.createContainer(ctx, "main")
		b.ReportAllocs()
		for b.Loop() {
			n.startContainer(ctx, "main", nil)
		}
	})
}

// BenchmarkIdleCall is one that does not: the kubelet lists all containers each second.
func BenchmarkIdleCall(b *testing.B) {
	n, _ := benchNode()
	h, ctx := n.source.Handler(), context.Background()
	request, answer := &criv1.ListContainersRequest{}, &criv1.ListContainersResponse{}
	b.ReportAllocs()
	for b.Loop() {
		rpc(ctx, h, runtimeService+"ListContainers", request, answer, nil, nil)
	}
}

// BenchmarkIdleSync is a sync of a pod that runs.
func BenchmarkIdleSync(b *testing.B) {
	n, _ := benchNode()
	b.ReportAllocs()
	for b.Loop() {
		n.sync(syncPod, resync, nil, func(context.Context) {})
	}
}

// BenchmarkPod is a pod with an init container and a hook, from its start to its end.
func BenchmarkPod(b *testing.B) {
	n, store := benchNode()
	b.ReportAllocs()
	var pods int
	for b.Loop() {
		pods++
		n.sync(syncPod, "create", nil, func(ctx context.Context) {
			n.runSandbox(ctx, nil)
			n.createContainer(ctx, "init")
			n.startContainer(ctx, "init", nil)
		})
		n.sync(syncPod, resync, nil, func(ctx context.Context) {
			n.createContainer(ctx, "main")
			n.startContainer(ctx, "main", nil)
			n.exec(ctx, "main", "hook", 0, "", nil)
		})
		n.sync(syncTerminatingPod, "", nil, n.stopSandbox)
		n.sync(syncTerminatedPod, "", nil, func(context.Context) {})
	}
	_, records := store.Since(0, 1<<30)
	b.ReportMetric(float64(records)/float64(pods), "records/pod")
}
