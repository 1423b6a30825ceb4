package sdk

import (
	"bytes"
	"context"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// metrics writes what a plugin counts, as Prometheus text; nil: it counts nothing. It is no prometheus.Gatherer, as every
// plugin would have the library in it then.
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
