package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// What a scheduling plugin reads. It must not change them, as other calls read them too.
type (
	Pod        = schedulingv1.Pod
	Node       = schedulingv1.Node
	Resources  = schedulingv1.Resources
	NodeFields = pluginv1.NodeFields
)

// Scheduling is a scheduling plugin: Filter, Score or both. The SDK calls them for one node at a time, from several
// goroutines; the host sends all nodes of a pod in one message.
type Scheduling struct {
	Version   string             // for the operator only
	Configure func(Config) error // called before the first call; an error refuses the plugin. May be nil

	// Filter returns why a pod cannot run on a node, in a few words that users read in the pod's events; "" if it can.
	Filter func(ctx context.Context, pod *Pod, node *Node) string
	// Score returns how well a node suits the pod, 0 to 100.
	Score func(ctx context.Context, pod *Pod, node *Node) int
	// ScoreAll replaces Score in plugins that compare nodes with each other. It returns one score per node.
	ScoreAll func(ctx context.Context, pod *Pod, nodes []*Node) ([]int, error)

	Weight         int           // of the score among upstream's plugins; 0: 1
	Needs          *NodeFields   // fields of nodes to send; nil: all but pods. Request only what Filter and Score read
	FilterUsesPods bool          // results depend on the node's pods or requests: preemption calls Filter again without some of the pods
	Unresolvable   bool          // preempting pods cannot make a node pass that Filter has rejected
	FullPod        bool          // send Pod.Full; turns off upstream's batching of equal pods
	MustAnswer     bool          // pods wait if the plugin does not answer; otherwise they are scheduled without it
	Timeout        time.Duration // of one call; 0: 100 ms

	Metrics func(io.Writer) error // writes the plugin's own metrics as Prometheus text; nil: it has none
}

// ServeScheduling runs the plugin until the host ends it. It is the last call of main.
func ServeScheduling(s Scheduling) {
	serve(s.Metrics, func(r *pluginv1.DescribeRequest) (*pluginv1.Description, error) { return s.Describe(configOf(r)) }, s.Register)
}

// Describe calls Configure and returns the plugin's description for the host. ServeScheduling uses it; so do tests.
func (s Scheduling) Describe(c Config) (*pluginv1.Description, error) {
	if s.Filter == nil && s.Score == nil && s.ScoreAll == nil {
		return nil, errors.New("the plugin has neither Filter nor Score")
	}
	if s.Configure != nil {
		if err := s.Configure(c); err != nil {
			return nil, err
		}
	}
	d := &pluginv1.SchedulingDescription{
		Filter:         s.Filter != nil,
		Score:          s.Score != nil || s.ScoreAll != nil,
		Weight:         int32(s.Weight),
		FullPod:        s.FullPod,
		FilterUsesPods: s.FilterUsesPods,
		Unresolvable:   s.Unresolvable,
		Needs:          s.Needs,
	}
	if s.MustAnswer {
		d.FailurePolicy = pluginv1.FailurePolicy_FAILURE_POLICY_FAIL
	}
	if s.Timeout != 0 {
		d.Timeout = durationpb.New(s.Timeout)
	}
	return &pluginv1.Description{Version: s.Version, Kind: &pluginv1.Description_Scheduling{Scheduling: d}}, nil
}

// Register adds the scheduling service to a server. ServeScheduling uses it; so do tests.
func (s Scheduling) Register(server grpc.ServiceRegistrar) {
	schedulingv1.RegisterSchedulingServer(server, &schedulingServer{plugin: s})
}

type schedulingServer struct {
	schedulingv1.UnimplementedSchedulingServer
	plugin   Scheduling
	snapshot nodeSnapshot
}

// Filter implements schedulingv1.SchedulingServer.
func (s *schedulingServer) Filter(ctx context.Context, r *schedulingv1.FilterRequest) (*schedulingv1.FilterResponse, error) {
	nodes, err := s.snapshot.update(r.GetUpdate(), r.GetNodes())
	if err != nil {
		return nil, err
	}
	if s.plugin.Filter == nil {
		return nil, status.Error(codes.Unimplemented, "the plugin does not filter")
	}
	rejected := map[string]*schedulingv1.Rejection{}
	out := &schedulingv1.FilterResponse{}
	for _, node := range nodes {
		if err := ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		reason := s.plugin.Filter(ctx, r.GetPod(), node)
		if reason == "" {
			continue
		}
		rejection := rejected[reason]
		if rejection == nil {
			rejection = &schedulingv1.Rejection{Reason: reason}
			rejected[reason] = rejection
			out.Rejected = append(out.Rejected, rejection)
		}
		rejection.Nodes = append(rejection.Nodes, node.GetId())
	}
	return out, nil
}

// FilterNode implements schedulingv1.SchedulingServer.
func (s *schedulingServer) FilterNode(ctx context.Context, r *schedulingv1.FilterNodeRequest) (*schedulingv1.FilterNodeResponse, error) {
	if s.plugin.Filter == nil {
		return nil, status.Error(codes.Unimplemented, "the plugin does not filter")
	}
	return &schedulingv1.FilterNodeResponse{Reason: s.plugin.Filter(context.WithValue(ctx, whatIf{}, true), r.GetPod(), r.GetNode())}, nil
}

type whatIf struct{}

// WhatIf reports whether the node of a Filter call is hypothetical: with some pods removed or added. The plugin must
// not remember it.
func WhatIf(ctx context.Context) bool { return ctx.Value(whatIf{}) != nil }

// Score implements schedulingv1.SchedulingServer.
func (s *schedulingServer) Score(ctx context.Context, r *schedulingv1.ScoreRequest) (*schedulingv1.ScoreResponse, error) {
	nodes, err := s.snapshot.update(r.GetUpdate(), r.GetNodes())
	if err != nil {
		return nil, err
	}
	scores, err := s.scores(ctx, r.GetPod(), nodes)
	if err != nil {
		return nil, err
	}
	out := make([]byte, len(nodes))
	for i, score := range scores {
		if score < 0 || score > 100 {
			return nil, status.Error(codes.OutOfRange, fmt.Sprintf("score %d of node %s is not in 0 to 100", score, nodes[i].GetName()))
		}
		out[i] = byte(score)
	}
	return &schedulingv1.ScoreResponse{Scores: out}, nil
}

// scores returns the scores of nodes, in their order.
func (s *schedulingServer) scores(ctx context.Context, pod *Pod, nodes []*Node) ([]int, error) {
	switch {
	case s.plugin.ScoreAll != nil:
		scores, err := s.plugin.ScoreAll(ctx, pod, nodes)
		if err == nil && len(scores) != len(nodes) {
			err = status.Error(codes.OutOfRange, fmt.Sprintf("%d scores for %d nodes", len(scores), len(nodes)))
		}
		return scores, err
	case s.plugin.Score == nil:
		return nil, status.Error(codes.Unimplemented, "the plugin does not score")
	}
	scores := make([]int, len(nodes))
	for i, node := range nodes {
		if err := ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		scores[i] = s.plugin.Score(ctx, pod, node)
	}
	return scores, nil
}
