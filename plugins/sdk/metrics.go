package sdk

import (
	"bytes"
	"context"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// metrics writes a plugin's metrics as Prometheus text; nil: it has none. It is not a prometheus.Gatherer, because
// every plugin would link the library then.
type metrics func(io.Writer) error

// Metrics implements pluginv1.PluginServer.
func (s *service) Metrics(ctx context.Context, r *pluginv1.MetricsRequest) (*pluginv1.MetricsResponse, error) {
	if s.metrics == nil {
		return s.UnimplementedPluginServer.Metrics(ctx, r)
	}
	var text bytes.Buffer
	if err := s.metrics(&text); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &pluginv1.MetricsResponse{Text: text.Bytes()}, nil
}
