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

// What a scheduling plugin reads. It must not change them: other calls read them too.
type (
	Pod        = schedulingv1.Pod
	Node       = schedulingv1.Node
	Resources  = schedulingv1.Resources
	NodeFields = pluginv1.NodeFields
)

// Scheduling is a scheduling plugin: Filter, Score or both. Both are called for one node at a time, from several goroutines;
// all nodes of a pod came in one message.
type Scheduling struct {
	Version   string             // for the operator only
	Configure func(Config) error // before the first call; its error refuses the plugin. May be nil

	// Filter returns why a pod cannot run on a node, in a few words that users read in the pod's events; "" when it can.
	Filter func(ctx context.Context, pod *Pod, node *Node) string
	// Score says how well a node suits, 0 to 100.
	Score func(ctx context.Context, pod *Pod, node *Node) int
	// ScoreAll is Score for plugins that compare the nodes with each other: one score for each.
	ScoreAll func(ctx context.Context, pod *Pod, nodes []*Node) ([]int, error)

	Weight         int           // of the score, beside upstream's plugins; 0: 1
	Needs          *NodeFields   // what is sent of nodes; nil: everything but pods. What is not needed should not be sent
	FilterUsesPods bool          // a verdict depends on pods or requests of the node: Filter is asked again when preemption tries without some of them
	Unresolvable   bool          // preempting pods never makes a node pass that Filter has refused
	FullPod        bool          // wants Pod.Full; costs the batching of equal pods
	MustAnswer     bool          // a pod is not scheduled without the plugin's answer; otherwise it is scheduled as if there were no plugin
	Timeout        time.Duration // of one call; 0: 100 ms

	Metrics func(io.Writer) error // writes the plugin's own metrics as Prometheus text; nil: there are none
}

// ServeScheduling runs the plugin until the host ends it. It is the last call of main.
func ServeScheduling(s Scheduling) {
	serve(s.Metrics, func(r *pluginv1.DescribeRequest) (*pluginv1.Description, error) { return s.Describe(configOf(r)) }, s.Register)
}

// Describe is what the host is told of the plugin with a configuration. ServeScheduling calls it; so do tests.
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

// Register adds the calls of the scheduler to a server. ServeScheduling calls it; so do tests.
func (s Scheduling) Register(server grpc.ServiceRegistrar) {
	schedulingv1.RegisterSchedulingServer(server, &schedulingServer{plugin: s})
}

type schedulingServer struct {
	schedulingv1.UnimplementedSchedulingServer
	plugin  Scheduling
	picture picture
}

// Filter implements schedulingv1.SchedulingServer.
func (s *schedulingServer) Filter(ctx context.Context, r *schedulingv1.FilterRequest) (*schedulingv1.FilterResponse, error) {
	nodes, err := s.picture.update(r.GetUpdate(), r.GetNodes())
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

// WhatIf tells whether Filter is asked about a node as it would be, without some of its pods or with others. What such a
// node says must not be remembered.
func WhatIf(ctx context.Context) bool { return ctx.Value(whatIf{}) != nil }

// Score implements schedulingv1.SchedulingServer.
func (s *schedulingServer) Score(ctx context.Context, r *schedulingv1.ScoreRequest) (*schedulingv1.ScoreResponse, error) {
	nodes, err := s.picture.update(r.GetUpdate(), r.GetNodes())
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

// scores of nodes, in their order.
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
