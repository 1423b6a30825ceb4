package sdk

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// maxNodes bounds the ids of nodes, as they index a slice.
const maxNodes = 1 << 20

// nodeSnapshot is the plugin's copy of the nodes. The host sends numbered changes; after an update that does not follow
// the last one and is refused, it starts a new epoch with all nodes.
type nodeSnapshot struct {
	mu              sync.Mutex
	epoch, sequence uint64
	nodes           []*schedulingv1.Node // by id; nil: no node has this id
}

// update applies u and returns the wanted nodes; without any, all nodes in the order of their ids.
func (p *nodeSnapshot) update(u *schedulingv1.Update, wanted []uint32) ([]*schedulingv1.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.apply(u); err != nil {
		return nil, err
	}
	if len(wanted) == 0 {
		out := make([]*schedulingv1.Node, 0, len(p.nodes))
		for _, node := range p.nodes {
			if node != nil {
				out = append(out, node)
			}
		}
		return out, nil
	}
	out := make([]*schedulingv1.Node, len(wanted))
	for i, id := range wanted {
		if id >= uint32(len(p.nodes)) || p.nodes[id] == nil {
			return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("node %d does not exist in epoch %d", id, p.epoch))
		}
		out[i] = p.nodes[id]
	}
	return out, nil
}

// apply refuses an update that does not follow the last one. One of an earlier epoch belongs to a call that the host
// has abandoned.
func (p *nodeSnapshot) apply(u *schedulingv1.Update) error {
	switch {
	case u.GetEpoch() > p.epoch && u.GetSequence() == 1:
		p.nodes = nil
	case u.GetEpoch() != p.epoch || u.GetSequence() != p.sequence+1:
		return status.Error(codes.FailedPrecondition, fmt.Sprintf("update %d of epoch %d does not follow update %d of epoch %d",
			u.GetSequence(), u.GetEpoch(), p.sequence, p.epoch))
	}
	p.epoch, p.sequence = u.GetEpoch(), u.GetSequence()
	for _, id := range u.GetRemoved() {
		if id < uint32(len(p.nodes)) {
			p.nodes[id] = nil
		}
	}
	for _, node := range u.GetChanged() {
		if node.GetId() >= maxNodes {
			return status.Error(codes.InvalidArgument, fmt.Sprintf("node id %d is too high", node.GetId()))
		}
		for uint32(len(p.nodes)) <= node.GetId() {
			p.nodes = append(p.nodes, nil)
		}
		p.nodes[node.GetId()] = node
	}
	return nil
}
