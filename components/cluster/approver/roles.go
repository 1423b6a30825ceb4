package approver

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/removed"
)

// rolePatch sets the label by which kubectl and charts recognise the nodes of the control plane.
const rolePatch = `{"metadata":{"labels":{"` + removed.ServerLabel + `":""}}}`

// lacksRole reports whether the Node is a server's without the label. The API server lets no node set the label on
// itself, so that it tells servers from agents whatever those claim.
func (s *Server) lacksRole(object any) bool {
	node, ok := object.(*corev1.Node)
	if !ok || !s.isServer(node.Name, node) {
		return false
	}
	_, has := node.Labels[removed.ServerLabel]
	return !has
}

// isServer reports whether a name is a server's: this one's, or that of a Node whose labels say so. Agents cannot set
// them.
func (s *Server) isServer(name string, node *corev1.Node) bool {
	return slices.Contains(s.opts.ServerNames, name) || node != nil && node.Labels[names.RoleLabel] == names.RoleServer
}

// labelServers labels the Nodes of servers that lack it.
func (s *Server) labelServers(ctx context.Context) {
	nodes, _ := s.nodes.List(labels.Everything()) // from memory: it does not fail
	for _, node := range nodes {
		if !s.lacksRole(node) {
			continue
		}
		if _, err := s.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(rolePatch), metav1.PatchOptions{}); err != nil {
			s.opts.Log.Warnf("cannot label node %s with %s, retrying in %s: %v", node.Name, removed.ServerLabel, tidyEvery, err)
		}
	}
}
