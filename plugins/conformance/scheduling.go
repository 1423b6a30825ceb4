package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"kubelith.io/kubelith/plugins"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// schedulingChecks returns the checks of scheduling plugins.
func schedulingChecks() []Check {
	return []Check{
		{"knows the nodes that it was sent", knowsNodes},
		{"equal pods get equal answers", answersTheSame},
		{"refuses an epoch that it does not know with FAILED_PRECONDITION", refusesUnknownEpochs},
		{"forgets the nodes of an earlier epoch", forgetsNodes},
		{"keeps nothing of FilterNode", keepsNothing},
		{"a thousand nodes, 16 calls at once", thousandNodes},
	}
}

// testNodes are the nodes that a plugin has been sent.
type testNodes struct {
	epoch, sequence uint64
	nodes           []*schedulingv1.Node
}

// newTestNodes returns n nodes of different sizes in a new epoch. Epochs grow, as the
// scheduler's do.
func newTestNodes(n int) *testNodes {
	p := &testNodes{epoch: uint64(time.Now().UnixNano())}
	for i := range n {
		p.nodes = append(p.nodes, &schedulingv1.Node{
			Id: uint32(i + 1), Name: fmt.Sprintf("node-%d", i+1),
			Labels:      map[string]string{"kubernetes.io/hostname": fmt.Sprintf("node-%d", i+1), "kubernetes.io/os": "linux"},
			Allocatable: &schedulingv1.Resources{MilliCpu: int64(1000 * (1 + i%4)), Memory: int64(1+i%8) << 30, Pods: 110},
			Requested:   &schedulingv1.Resources{MilliCpu: int64(100 * (i % 5)), Memory: int64(i%3) << 28, Pods: int64(i % 5)},
		})
	}
	return p
}

// whole returns an update with all nodes.
func (p *testNodes) whole() *schedulingv1.Update {
	p.sequence = 1
	return &schedulingv1.Update{Epoch: p.epoch, Sequence: 1, Changed: p.nodes}
}

// nothing returns an update without changes.
func (p *testNodes) nothing() *schedulingv1.Update {
	p.sequence++
	return &schedulingv1.Update{Epoch: p.epoch, Sequence: p.sequence}
}

func (p *testNodes) ids() []uint32 {
	var ids []uint32
	for _, n := range p.nodes {
		ids = append(ids, n.Id)
	}
	return ids
}

func somePod() *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Namespace: "default", Labels: map[string]string{"app": "check"}, SchedulerName: "default-scheduler",
		Requests: &schedulingv1.Resources{MilliCpu: 100, Memory: 64 << 20, Pods: 1},
		Full: []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"check","namespace":"default","labels":{"app":"check"}},` +
			`"spec":{"containers":[{"name":"c","image":"i"}]}}`),
	}
}

// results are a plugin's results for testNodes.
type results struct {
	rejected []uint32
	scores   []byte
}

// ask calls Filter and Score, as far as the plugin offers them, and checks that the answers are about these nodes. If
// it offers both, the second call has its own update.
func (t *Target) ask(ctx context.Context, p *testNodes, update *schedulingv1.Update) (v results, err error) {
	d := t.Description().GetScheduling()
	if d.Filter {
		request := &schedulingv1.FilterRequest{Update: update, Pod: somePod(), PodName: "check", PodUid: "1"}
		var answer *schedulingv1.FilterResponse
		err := t.scheduling(ctx, "Filter", func(ctx context.Context, c schedulingv1.SchedulingClient) (err error) {
			answer, err = c.Filter(ctx, request)
			return err
		})
		if err != nil {
			return v, err
		}
		for _, r := range answer.Rejected {
			if r.Reason == "" {
				return v, errors.New("filter: nodes rejected without a reason")
			}
			v.rejected = append(v.rejected, r.Nodes...)
		}
		slices.Sort(v.rejected)
		for _, id := range v.rejected {
			if !slices.Contains(p.ids(), id) {
				return v, fmt.Errorf("filter: rejected node %d, which was not in the request", id)
			}
		}
		if d.Score {
			update = p.nothing()
		}
	}
	if d.Score {
		request := &schedulingv1.ScoreRequest{Update: update, Pod: somePod(), PodName: "check", PodUid: "1", Nodes: p.ids()}
		err := t.scheduling(ctx, "Score", func(ctx context.Context, c schedulingv1.SchedulingClient) error {
			answer, err := c.Score(ctx, request)
			v.scores = answer.GetScores()
			return err
		})
		if err != nil {
			return v, err
		}
		if len(v.scores) != len(p.nodes) {
			return v, fmt.Errorf("score: %d scores for %d nodes", len(v.scores), len(p.nodes))
		}
		for i, s := range v.scores {
			if s > 100 {
				return v, fmt.Errorf("score: %d for %s, more than 100", s, p.nodes[i].Name)
			}
		}
	}
	return v, nil
}

func (t *Target) scheduling(ctx context.Context, method string, call func(context.Context, schedulingv1.SchedulingClient) error) error {
	return t.plugin.Call(ctx, method, func(ctx context.Context, i plugins.Instance) error {
		return call(ctx, schedulingv1.NewSchedulingClient(i.Conn))
	})
}

func knowsNodes(ctx context.Context, t *Target) (string, error) {
	p := newTestNodes(5)
	v, err := t.ask(ctx, p, p.whole())
	return fmt.Sprintf("%d of 5 rejected, scores %v", len(v.rejected), v.scores), err
}

func answersTheSame(ctx context.Context, t *Target) (string, error) {
	p := newTestNodes(50)
	first, err := t.ask(ctx, p, p.whole())
	if err != nil {
		return "", err
	}
	for range 5 {
		again, err := t.ask(ctx, p, p.nothing())
		if err != nil {
			return "", err
		}
		if !slices.Equal(first.rejected, again.rejected) || !bytes.Equal(first.scores, again.scores) {
			return "", fmt.Errorf("first %v, then %v: results may depend on the pod and the nodes only; "+
				"otherwise set full_pod, so that equal pods are not batched", first, again)
		}
	}
	return "", nil
}

// refusesUnknownEpochs sends a change in an epoch that the plugin does not know, as after its restart, and then leaves
// an update out.
func refusesUnknownEpochs(ctx context.Context, t *Target) (string, error) {
	p := newTestNodes(3)
	p.sequence = 7
	if _, err := t.ask(ctx, p, p.nothing()); status.Code(err) != codes.FailedPrecondition {
		return "", fmt.Errorf("an update of an unknown epoch: answered %v", err)
	}
	if _, err := t.ask(ctx, p, p.whole()); err != nil {
		return "", err
	}
	p.sequence++
	if _, err := t.ask(ctx, p, p.nothing()); status.Code(err) != codes.FailedPrecondition {
		return "", fmt.Errorf("an update after one that it never got: answered %v", err)
	}
	return "", nil
}

func forgetsNodes(ctx context.Context, t *Target) (string, error) {
	old := newTestNodes(5)
	if _, err := t.ask(ctx, old, old.whole()); err != nil {
		return "", err
	}
	p := newTestNodes(2)
	if _, err := t.ask(ctx, p, p.whole()); err != nil {
		return "", err
	}
	gone := p.nodes[1]
	p.nodes = p.nodes[:1]
	update := p.nothing()
	update.Removed = []uint32{gone.Id}
	_, err := t.ask(ctx, p, update)
	return "", err
}

// keepsNothing sends a hypothetical node, and checks that results for the real nodes stay the same.
func keepsNothing(ctx context.Context, t *Target) (string, error) {
	if !t.Description().GetScheduling().Filter {
		return "it does not filter", nil
	}
	p := newTestNodes(3)
	before, err := t.ask(ctx, p, p.whole())
	if err != nil {
		return "", err
	}
	full := proto.CloneOf(p.nodes[0])
	full.Requested = proto.CloneOf(full.Allocatable)
	err = t.scheduling(ctx, "FilterNode", func(ctx context.Context, c schedulingv1.SchedulingClient) error {
		_, err := c.FilterNode(ctx, &schedulingv1.FilterNodeRequest{Node: full, Pod: somePod(), PodName: "check", PodUid: "1"})
		return err
	})
	if err != nil {
		return "", err
	}
	after, err := t.ask(ctx, p, p.nothing())
	if err == nil && !slices.Equal(before.rejected, after.rejected) {
		err = fmt.Errorf("rejected %v before and %v after", before.rejected, after.rejected)
	}
	return "", err
}

func thousandNodes(ctx context.Context, t *Target) (string, error) {
	p := newTestNodes(1000)
	if _, err := t.ask(ctx, p, p.whole()); err != nil {
		return "", err
	}
	if !t.Description().GetScheduling().Filter {
		return "", nil
	}
	return "", atOnce(16, func(i int) error {
		return t.scheduling(ctx, "FilterNode", func(ctx context.Context, c schedulingv1.SchedulingClient) error {
			_, err := c.FilterNode(ctx, &schedulingv1.FilterNodeRequest{Node: p.nodes[i], Pod: somePod(), PodName: "check", PodUid: "1"})
			return err
		})
	})
}
