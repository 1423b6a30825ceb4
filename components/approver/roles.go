package approver

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/components/removed"
)

// rolePatch puts the label on a Node by which kubectl and charts know the nodes of the control plane.
const rolePatch = `{"metadata":{"labels":{"` + removed.ServerLabel + `":""}}}`

// lacksRole reports whether the Node is a server's without the label. The API server lets no node put it on itself, so that it tells
// servers from agents whatever those say.
func (s *Server) lacksRole(object any) bool {
	node, ok := object.(*corev1.Node)
	if !ok || !slices.Contains(s.opts.ServerNames, node.Name) {
		return false
	}
	_, has := node.Labels[removed.ServerLabel]
	return !has
}

// labelServers labels the Nodes of servers that lack it.
func (s *Server) labelServers(ctx context.Context) {
	for _, name := range s.opts.ServerNames {
		node, err := s.nodes.Get(name)
		if err != nil || !s.lacksRole(node) { // it has not registered yet
			continue
		}
		if _, err := s.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(rolePatch), metav1.PatchOptions{}); err != nil {
			s.opts.Log.Warnf("label the node %s with %s, next try in %s: %v", name, removed.ServerLabel, tidyEvery, err)
		}
	}
}
