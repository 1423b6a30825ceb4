package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
	"kubelith.io/kubelith/plugins/sdk"
)

const gi = 1 << 30

// measured is a memory that has read what nodes use from an API.
func measured(t *testing.T, used map[string]int64) *memory {
	t.Helper()
	var list metricsv1beta1.NodeMetricsList
	for name, bytes := range used {
		list.Items = append(list.Items, metricsv1beta1.NodeMetrics{ObjectMeta: metav1.ObjectMeta{Name: name},
			Usage: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(bytes, resource.BinarySI)}})
	}
	m := &memory{log: hclog.NewNullLogger()}
	serve(t, m, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/metrics.k8s.io/v1beta1/nodes" {
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(list)
	})
	if err := m.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// serve connects m with an API by a kubeconfig.
func serve(t *testing.T, m *memory, api http.HandlerFunc) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: a, context: {cluster: a}}]\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBELITH_KUBECONFIG", kubeconfig)
	if err := m.connect(); err != nil {
		t.Fatal(err)
	}
}

func node(name string, requested int64) *sdk.Node {
	return &sdk.Node{Name: name, Allocatable: &sdk.Resources{Memory: 8 * gi}, Requested: &sdk.Resources{Memory: requested}}
}

// whatIf asks the plugin about a node as it would be, as the host does.
func whatIf(t *testing.T, m *memory, node *sdk.Node, pod *sdk.Pod) string {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	sdk.Scheduling{Filter: m.filter}.Register(server)
	go server.Serve(listener)
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := schedulingv1.NewSchedulingClient(conn).FilterNode(t.Context(), &schedulingv1.FilterNodeRequest{Node: node, Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetReason()
}

func pod(request int64) *sdk.Pod { return &sdk.Pod{Requests: &sdk.Resources{Memory: request}} }

// TestByRealMemory: what counts is what a node uses, not what its pods request.
func TestByRealMemory(t *testing.T) {
	m := measured(t, map[string]int64{"busy": 7 * gi, "half": 4 * gi, "idle": 1 * gi})
	ctx := t.Context()
	// All have promised the same.
	busy, half, idle := node("busy", 2*gi), node("half", 2*gi), node("idle", 2*gi)
	if reason := m.filter(ctx, pod(2*gi), busy); reason == "" {
		t.Error("a node with 1 GiB free took a pod of 2 GiB")
	}
	if reason := m.filter(ctx, pod(gi), busy); reason != "" {
		t.Errorf("a node with 1 GiB free refused a pod of 1 GiB: %s", reason)
	}
	if full, more, less := m.score(ctx, pod(gi), busy), m.score(ctx, pod(gi), half), m.score(ctx, pod(gi), idle); full != 100 || full <= more || more <= less {
		t.Errorf("scores %d, %d, %d: want the fullest first, and 100 for one that the pod fills", full, more, less)
	}
	unknown := node("new", 0)
	if m.filter(ctx, pod(100*gi), unknown) != "" || m.score(ctx, pod(gi), unknown) != 0 {
		t.Error("a node without a measurement is scored")
	}
}

// TestMetrics: the metrics have the usage that scheduling uses.
func TestMetrics(t *testing.T) {
	var text strings.Builder
	if err := measured(t, map[string]int64{"a": 4 * gi}).metrics(&text); err != nil || !strings.HasSuffix(text.String(), "\nfreememory_used_bytes{node=\"a\"} 4294967296\n") {
		t.Errorf("%q, %v", text.String(), err)
	}
}

// TestSinceMeasured: pods that have come or gone since the measurement count by their requests; what is only tried is
// not remembered.
func TestSinceMeasured(t *testing.T) {
	m := measured(t, map[string]int64{"a": 4 * gi})
	ctx := t.Context()
	// Preemption asks first: what it tries is no baseline.
	if reason := whatIf(t, m, node("a", gi), pod(5*gi)); reason == "" {
		t.Error("before it knows what was requested, it judges by what is used: 4 GiB are free")
	}
	free := func(requested int64) int64 {
		f, _ := m.free(ctx, node("a", requested))
		return f / gi
	}
	for _, step := range []struct{ requested, free int64 }{{3 * gi, 4}, {5 * gi, 2}, {2 * gi, 5}, {3 * gi, 4}} {
		if got := free(step.requested); got != step.free {
			t.Errorf("%d GiB requested: %d GiB free, want %d", step.requested/gi, got, step.free)
		}
	}
	if reason := whatIf(t, m, node("a", 0), pod(7*gi)); reason != "" {
		t.Errorf("without the pods that requested 3 GiB 7 GiB are free, it says %q", reason)
	}
	if err := m.measure(ctx); err != nil {
		t.Fatal(err)
	}
	if got := free(5 * gi); got != 4 {
		t.Errorf("after a new measurement %d GiB are free, want 4", got)
	}
}

// TestErrors: errors in the configuration and of the API are reported, and old usage is kept.
func TestErrors(t *testing.T) {
	for text, says := range map[string]string{
		`{"refresh":"soon"}`: `refresh: "soon" is not a duration`,
		`{"refresh":"1ms"}`:  `refresh: "1ms" is not a duration`,
		`{"refersh":"1m"}`:   "refersh",
	} {
		m := &memory{}
		if err := m.configure(sdk.Config{JSON: []byte(text), Log: hclog.NewNullLogger()}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	t.Setenv("KUBELITH_KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	if err := (&memory{}).configure(sdk.Config{Log: hclog.NewNullLogger()}); err == nil || !strings.Contains(err.Error(), "KUBELITH_KUBECONFIG") {
		t.Errorf("without a kubeconfig: %v", err)
	}
	m := measured(t, map[string]int64{"a": gi})
	serve(t, m, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "nodes is forbidden", http.StatusForbidden)
	})
	if err := m.measure(t.Context()); err == nil || !strings.Contains(err.Error(), "nodes is forbidden") {
		t.Errorf("measure: %v", err)
	}
	if _, known := m.free(t.Context(), node("a", 0)); !known {
		t.Error("old usage are lost")
	}
}
