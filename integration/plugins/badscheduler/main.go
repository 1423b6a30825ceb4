// Badscheduler is a scheduling plugin that answers wrongly where a pod's label "fault" requests it. It implements the
// protocol itself: the SDK would not send such answers. With `config: {forbid: true}` it refuses every pod everywhere.
package main

import (
	"context"
	"encoding/json"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/proto"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

func main() {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  proto.Handshake,
		VersionedPlugins: map[int]plugin.PluginSet{proto.Version: {proto.Name: &bad{known: map[uint32]bool{}}}},
		GRPCServer:       plugin.DefaultGRPCServer,
	})
}

type bad struct {
	plugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedPluginServer
	schedulingv1.UnimplementedSchedulingServer
	forbid bool
	known  map[uint32]bool // the host's ids of nodes: it sends its updates one after the other
}

func (b *bad) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	pluginv1.RegisterPluginServer(s, b)
	schedulingv1.RegisterSchedulingServer(s, b)
	return nil
}

func (*bad) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func (b *bad) Describe(_ context.Context, r *pluginv1.DescribeRequest) (*pluginv1.Description, error) {
	config := struct{ Forbid bool }{}
	if len(r.GetConfig()) > 0 {
		if err := json.Unmarshal(r.GetConfig(), &config); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	b.forbid = config.Forbid
	return &pluginv1.Description{Kind: &pluginv1.Description_Scheduling{Scheduling: &pluginv1.SchedulingDescription{Filter: true, Score: true, Weight: 100}}}, nil
}

// follow keeps the ids of the nodes that there are.
func (b *bad) follow(u *schedulingv1.Update) {
	if u.GetSequence() == 1 {
		clear(b.known)
	}
	for _, n := range u.GetChanged() {
		b.known[n.GetId()] = true
	}
	for _, id := range u.GetRemoved() {
		delete(b.known, id)
	}
}

func (b *bad) Filter(_ context.Context, r *schedulingv1.FilterRequest) (*schedulingv1.FilterResponse, error) {
	b.follow(r.GetUpdate())
	out := &schedulingv1.FilterResponse{}
	reject := func(reason string, ids ...uint32) {
		out.Rejected = append(out.Rejected, &schedulingv1.Rejection{Reason: reason, Nodes: ids})
	}
	if b.forbid {
		for id := range b.known {
			reject("forbidden for now", id)
		}
	}
	switch r.GetPod().GetLabels()["fault"] {
	case "unknown-node":
		reject("no such node", 4711)
	case "no-reason":
		for id := range b.known {
			reject("", id)
		}
	}
	return out, nil
}

func (b *bad) Score(_ context.Context, r *schedulingv1.ScoreRequest) (*schedulingv1.ScoreResponse, error) {
	b.follow(r.GetUpdate())
	scores := make([]byte, len(r.GetNodes()))
	switch r.GetPod().GetLabels()["fault"] {
	case "score-101":
		scores[0] = 101
	case "score-255": // which stands for none at the other side
		for i := range scores {
			scores[i] = 255
		}
	case "few-scores":
		scores = scores[1:]
	case "many-scores":
		scores = append(scores, 1)
	}
	return &schedulingv1.ScoreResponse{Scores: scores}, nil
}
