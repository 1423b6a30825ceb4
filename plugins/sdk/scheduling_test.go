package sdk

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// memory filters and scores by a node's memory.
var memory = Scheduling{
	Filter: func(_ context.Context, pod *Pod, node *Node) string {
		if node.GetAllocatable().GetMemory() < pod.GetRequests().GetMemory() {
			return "too little memory"
		}
		return ""
	},
	Score: func(_ context.Context, _ *Pod, node *Node) int { return int(node.GetAllocatable().GetMemory()) },
}

func sized(id uint32, memory int64) *Node {
	return &Node{Id: id, Name: string('a' + rune(id)), Allocatable: &Resources{Memory: memory}}
}

func TestDescribeScheduling(t *testing.T) {
	full := memory
	full.Weight, full.MustAnswer, full.Timeout, full.FilterUsesPods = 3, true, time.Second, true
	full.Configure = func(c Config) error { return c.Decode(&struct{ Zone string }{}) }
	d, err := full.Describe(Config{JSON: []byte(`{"zone":"a"}`)})
	if err != nil {
		t.Fatal(err)
	}
	s := d.GetScheduling()
	if !s.GetFilter() || !s.GetScore() || s.GetWeight() != 3 || !s.GetFilterUsesPods() || s.GetTimeout().AsDuration() != time.Second ||
		s.GetFailurePolicy() != pluginv1.FailurePolicy_FAILURE_POLICY_FAIL || s.GetNeeds() != nil {
		t.Errorf("description %v", s)
	}
	if _, err := full.Describe(Config{JSON: []byte(`{"zoen":"a"}`)}); err == nil || !strings.Contains(err.Error(), "zoen") {
		t.Errorf("a key that it does not know: %v", err)
	}
	if _, err := (Scheduling{}).Describe(Config{}); err == nil {
		t.Error("a plugin that does nothing is described")
	}
}

// TestNodeSnapshot: updates are applied in their order only, and an answer is about what they say.
func TestNodeSnapshot(t *testing.T) {
	s := &schedulingServer{plugin: memory}
	ask := func(epoch, sequence uint64, changed []*Node, removed, nodes []uint32) (string, codes.Code) {
		r, err := s.Score(t.Context(), &schedulingv1.ScoreRequest{Nodes: nodes,
			Update: &schedulingv1.Update{Epoch: epoch, Sequence: sequence, Changed: changed, Removed: removed}})
		return string(r.GetScores()), status.Code(err)
	}
	for i, tc := range []struct {
		epoch, sequence uint64
		changed         []*Node
		removed, nodes  []uint32
		scores          string
		code            codes.Code
	}{
		{epoch: 1, sequence: 2, code: codes.FailedPrecondition}, // it has not seen the first
		{epoch: 1, sequence: 1, changed: []*Node{sized(1, 10), sized(0, 20), sized(2, 30)}, scores: "\x14\x0a\x1e"},
		{epoch: 1, sequence: 2, nodes: []uint32{2, 0}, scores: "\x1e\x14"},
		{epoch: 1, sequence: 4, code: codes.FailedPrecondition}, // one was lost
		{epoch: 1, sequence: 2, code: codes.FailedPrecondition}, // again
		{epoch: 1, sequence: 3, changed: []*Node{sized(0, 50)}, removed: []uint32{1, 9}, scores: "\x32\x1e"},
		{epoch: 1, sequence: 4, nodes: []uint32{1}, code: codes.FailedPrecondition}, // gone
		{epoch: 1, sequence: 5, changed: []*Node{sized(1, 7)}, scores: "\x32\x07\x1e"},
		{epoch: 3, sequence: 1, changed: []*Node{sized(0, 1)}, scores: "\x01"},
		{epoch: 2, sequence: 1, changed: []*Node{sized(0, 2)}, code: codes.FailedPrecondition}, // a late one
		{epoch: 3, sequence: 2, removed: []uint32{0}, changed: []*Node{sized(0, 3)}, scores: "\x03"},
		{epoch: 3, sequence: 3, changed: []*Node{sized(maxNodes, 3)}, code: codes.InvalidArgument},
	} {
		if scores, code := ask(tc.epoch, tc.sequence, tc.changed, tc.removed, tc.nodes); scores != tc.scores || code != tc.code {
			t.Errorf("request %d: %q, %v; want %q, %v", i, scores, code, tc.scores, tc.code)
		}
	}
}

func TestFilterServer(t *testing.T) {
	s := &schedulingServer{plugin: memory}
	pod := &Pod{Requests: &Resources{Memory: 15}}
	r, err := s.Filter(t.Context(), &schedulingv1.FilterRequest{Pod: pod,
		Update: &schedulingv1.Update{Epoch: 1, Sequence: 1, Changed: []*Node{sized(0, 10), sized(1, 20), sized(2, 11)}}})
	if err != nil || len(r.GetRejected()) != 1 || r.GetRejected()[0].GetReason() != "too little memory" {
		t.Fatalf("%v, %v", r, err)
	}
	if nodes := r.GetRejected()[0].GetNodes(); len(nodes) != 2 || nodes[0] != 0 || nodes[1] != 2 {
		t.Errorf("refused %v, want 0 and 2", nodes)
	}
	// A node as it would be is judged, and not remembered.
	one, err := s.FilterNode(t.Context(), &schedulingv1.FilterNodeRequest{Pod: pod, Node: sized(0, 15)})
	if err != nil || one.GetReason() != "" {
		t.Errorf("%v, %v", one, err)
	}
	r, err = s.Filter(t.Context(), &schedulingv1.FilterRequest{Pod: pod, Update: &schedulingv1.Update{Epoch: 1, Sequence: 2}})
	if err != nil || len(r.GetRejected()[0].GetNodes()) != 2 {
		t.Errorf("%v, %v", r, err)
	}
}

func TestWhatIf(t *testing.T) {
	var asked []bool
	s := &schedulingServer{plugin: Scheduling{Filter: func(ctx context.Context, _ *Pod, _ *Node) string {
		asked = append(asked, WhatIf(ctx))
		return ""
	}}}
	s.FilterNode(t.Context(), &schedulingv1.FilterNodeRequest{Node: sized(0, 1)})
	s.Filter(t.Context(), &schedulingv1.FilterRequest{Update: &schedulingv1.Update{Epoch: 1, Sequence: 1, Changed: []*Node{sized(0, 10)}}})
	if len(asked) != 2 || !asked[0] || asked[1] {
		t.Errorf("what if: %v, want true and false", asked)
	}
}

// TestBadScores: a plugin that gives none that count fails by the name of the node.
func TestBadScores(t *testing.T) {
	for says, all := range map[string]func(context.Context, *Pod, []*Node) ([]int, error){
		"score 101 of node b is not in 0 to 100": func(context.Context, *Pod, []*Node) ([]int, error) { return []int{0, 101}, nil },
		"score -1 of node a is not in 0 to 100":  func(context.Context, *Pod, []*Node) ([]int, error) { return []int{-1, 0}, nil },
		"1 scores for 2 nodes":                   func(context.Context, *Pod, []*Node) ([]int, error) { return []int{1}, nil },
		"no metrics":                             func(context.Context, *Pod, []*Node) ([]int, error) { return nil, errors.New("no metrics") },
	} {
		s := &schedulingServer{plugin: Scheduling{ScoreAll: all}}
		_, err := s.Score(t.Context(), &schedulingv1.ScoreRequest{
			Update: &schedulingv1.Update{Epoch: 1, Sequence: 1, Changed: []*Node{sized(0, 0), sized(1, 0)}}})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	s := &schedulingServer{plugin: Scheduling{Filter: memory.Filter}}
	if _, err := s.Score(t.Context(), &schedulingv1.ScoreRequest{Update: &schedulingv1.Update{Epoch: 1, Sequence: 1}}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a plugin without Score: %v", err)
	}
}
