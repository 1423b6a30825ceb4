package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/otlp"
	"kubelith.io/kubelith/trace/record"
)

// testNode: what an agent does for its pods is on the server, at the collector and in the metrics, and is there again
// when the server has restarted.
func testNode(t *testing.T, c *harness.Cluster, spans *collector) {
	s, agent := c.Server, c.Agents[0]
	ns := c.Namespace(t)
	traces, err := api.NewClient(s.RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	const image = "localhost:5000/big:1"
	const layers, layer = 3, 1 << 20
	serveImage(t, agent, "big", layers, layer)
	pulls := harness.Pod(ns, "pulls", "sleep", "1000")
	probed := harness.Pod(ns, "probed", "sleep", "1000")
	pulls.Spec.NodeName, probed.Spec.NodeName = agent.NodeName(), agent.NodeName()
	pulls.Spec.Containers[0].Image, pulls.Spec.Containers[0].ImagePullPolicy = image, corev1.PullIfNotPresent
	probed.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 30, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "test -e /tmp/ready || { echo not yet; exit 3; }"}}}}
	pulls, probed = s.Create(t, pulls), s.Create(t, probed)

	var pull trace.Span // the numbers of spans are those of one timeline, in which a pull comes before its stages
	awaitSpan(t, traces, pulls, func(p *trace.Span) bool {
		if p.Stage == record.Pull {
			pull = *p
		}
		return pull.ID != 0 && p.Parent == pull.ID && p.Stage == "unpack"
	})
	if pull.Name != image || pull.Bytes < layers*layer || pull.Error != "" || pull.Node != agent.NodeName() {
		t.Errorf("the pull: %+v", pull)
	}

	exported := func(what string, pod *corev1.Pod, is func(*tracepb.Span) bool) {
		t.Helper()
		id := otlp.TraceID(record.Object{Ref: record.Ref{UID: string(pod.UID)}}, "")
		harness.Eventually(t, harness.PodTimeout, what+" at the collector", func() error {
			return spans.find(agent.NodeName(), func(s *tracepb.Span) bool { return bytes.Equal(s.TraceId, id) && is(s) })
		})
	}
	exported("the pull", pulls, func(s *tracepb.Span) bool { return s.Name == "pull "+image })
	exported("a failed probe", probed, func(s *tracepb.Span) bool {
		return s.Name == "probe main" && s.Status.GetMessage() == "exit code 3: not yet"
	})
	s.Kubectl(t, "-n", ns, "exec", "probed", "--", "touch", "/tmp/ready")
	exported("a passed probe", probed, func(s *tracepb.Span) bool { return s.Name == "probe main" && s.Status == nil })

	if metrics := s.Kubectl(t, "get", "--raw", "/metrics"); !strings.Contains(metrics, `kubelith_stage_duration_seconds_count{stage="pull"} 1`) {
		t.Error("the server's metrics lack the pull")
	}
	if metrics := s.Kubectl(t, "get", "--raw", "/api/v1/nodes/"+agent.NodeName()+"/proxy/metrics"); !strings.Contains(metrics, `kubelith_stage_duration_seconds_count{stage="sandbox"} 2`) ||
		!strings.Contains(metrics, "\nkubelith_trace_records ") {
		t.Error("the agent's metrics lack what it has recorded")
	}

	s.Restart(t)
	s.Kubectl(t, "-n", ns, "exec", "probed", "--", "rm", "/tmp/ready") // the agent learns of it by the next record
	harness.Eventually(t, harness.PodTimeout, "the agent's records on a server that has restarted", func() error {
		if !strings.Contains(s.Kubectl(t, "get", "--raw", "/metrics"), `kubelith_stage_duration_seconds_count{stage="sandbox"} 2`) {
			return errors.New("the sandboxes of two pods are not there")
		}
		return nil
	})
}

// awaitSpan waits for a stage of a pod.
func awaitSpan(t *testing.T, c *api.Client, pod *corev1.Pod, is func(*trace.Span) bool) {
	t.Helper()
	harness.Eventually(t, harness.PodTimeout, "a stage of "+pod.Name, func() error {
		line, err := c.Timeline(t.Context(), "pods", pod.Namespace, pod.Name, 0)
		if err != nil {
			return err
		}
		var stages []string
		for i := range line.Spans {
			if is(&line.Spans[i]) {
				return nil
			}
			stages = append(stages, string(line.Spans[i].Stage))
		}
		return fmt.Errorf("it is not among %v", stages)
	})
}

// collector is an OTLP receiver in the sandbox of the server.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.ResourceSpans
}

const collectorAddress = "127.0.0.1:4317"

// serve receives until the test ends.
func (c *collector) serve(t *testing.T, s *harness.Server) error {
	l, err := s.Listen(collectorAddress)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	t.Cleanup(server.Stop)
	go func() { _ = server.Serve(l) }()
	return nil
}

// Export implements collectorpb.TraceServiceServer.
func (c *collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, r.ResourceSpans...)
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// find returns an error unless a span of a node is the one.
func (c *collector) find(node string, is func(*tracepb.Span) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range c.spans {
		if !strings.Contains(resource.Resource.String(), node) {
			continue
		}
		if slices.ContainsFunc(resource.ScopeSpans[0].Spans, is) {
			return nil
		}
	}
	return errors.New("it is not there")
}

// serveImage serves an image with random layers of some bytes on a node, as localhost:5000/NAME:1. containerd speaks
// HTTP to localhost.
func serveImage(t *testing.T, s *harness.Server, name string, layers, size int64) {
	t.Helper()
	made, err := random.Image(size, layers)
	if err == nil {
		made, err = mutate.ConfigFile(made, configOf(t, made))
	}
	if err != nil {
		t.Fatal(err)
	}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	harness.PushImage(t, images, name, made)
	l, err := s.Listen("127.0.0.1:5000")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: images}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(l) }()
}

// configOf returns the configuration of an image for this machine.
func configOf(t *testing.T, image v1.Image) *v1.ConfigFile {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	return config
}
