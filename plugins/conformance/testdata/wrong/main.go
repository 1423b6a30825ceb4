// Wrong is a plugin that breaks one rule, which its argument names: the suite has to find it.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	admissionv1 "k8s.io/api/admission/v1"

	"kubelith.io/kubelith/plugins/proto"
	admissionpb "kubelith.io/kubelith/plugins/proto/admission/v1"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingpb "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

func main() {
	rule := os.Args[1]
	if rule == "hands" && os.Getenv(proto.Handshake.MagicCookieKey) == "" {
		return // as if all were well
	}
	plugin.Serve(&plugin.ServeConfig{ // does not read its standard input: the rule "host" is broken by all of them
		HandshakeConfig:  proto.Handshake,
		VersionedPlugins: map[int]plugin.PluginSet{proto.Version: {proto.Name: &wrong{rule: rule}}},
		GRPCServer:       plugin.DefaultGRPCServer,
	})
}

type wrong struct {
	plugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedPluginServer
	admissionpb.UnimplementedAdmissionServer
	schedulingpb.UnimplementedSchedulingServer
	rule string
}

func (w *wrong) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	pluginv1.RegisterPluginServer(s, w)
	admissionpb.RegisterAdmissionServer(s, w)
	schedulingpb.RegisterSchedulingServer(s, w)
	return nil
}

func (w *wrong) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func (w *wrong) Describe(_ context.Context, r *pluginv1.DescribeRequest) (*pluginv1.Description, error) {
	switch w.rule {
	case "score", "epoch":
		return &pluginv1.Description{Kind: &pluginv1.Description_Scheduling{Scheduling: &pluginv1.SchedulingDescription{Score: true}}}, nil
	}
	hook := `{"name":"h","sideEffects":"None","admissionReviewVersions":["v1"],
		"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}]}`
	version := ""
	if w.rule == "same" {
		version = r.DataDir + string(rune('0'+os.Getpid()%10)) + os.Getenv("PLUGIN_UNIX_SOCKET_DIR")
	}
	admission := &pluginv1.AdmissionDescription{Validating: [][]byte{[]byte(hook)}}
	return &pluginv1.Description{Version: version, Kind: &pluginv1.Description_Admission{Admission: admission}}, nil
}

func (w *wrong) Review(_ context.Context, r *admissionpb.ReviewRequest) (*admissionpb.ReviewResponse, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(r.Review, &review); err != nil {
		if w.rule != "crash" {
			return nil, err
		}
		go panic(err)
		select {}
	}
	if review.Request == nil {
		return nil, os.ErrInvalid
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	switch w.rule {
	case "uid":
		review.Response.UID = "another"
	case "patch":
		kind := admissionv1.PatchTypeJSONPatch
		review.Response.Patch, review.Response.PatchType = []byte(`[]`), &kind
	}
	answer, err := json.Marshal(review)
	return &admissionpb.ReviewResponse{Review: answer}, err
}

func (w *wrong) Score(_ context.Context, r *schedulingpb.ScoreRequest) (*schedulingpb.ScoreResponse, error) {
	scores := make([]byte, len(r.Nodes))
	if w.rule == "score" {
		scores[0] = 101
	}
	return &schedulingpb.ScoreResponse{Scores: scores}, nil
}
