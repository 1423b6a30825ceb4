package approver

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/removed"
	"kubelith.io/kubelith/runtime/oci"
)

// outdated returns the labels of a Node that are to be set, or removed if nil. The API server lets no node set them on
// itself: the one by which kubectl and charts recognise the nodes of the control plane, and those that RuntimeClasses
// select, for the runtimes that the kubelet reports.
func (s *Server) outdated(object any) map[string]any {
	node, ok := object.(*corev1.Node)
	if !ok {
		return nil
	}
	out := map[string]any{}
	if _, has := node.Labels[removed.ServerLabel]; !has && s.isServer(node.Name, node) {
		out[removed.ServerLabel] = ""
	}
	for _, name := range oci.OfHost() {
		label := names.RuntimeLabel + name
		value, has := node.Labels[label]
		reported := slices.ContainsFunc(node.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool { return h.Name == name })
		switch {
		case reported && value != "true":
			out[label] = "true"
		case has && !reported:
			out[label] = nil
		}
	}
	return out
}

// isServer reports whether a name is a server's: this one's, or that of a Node with a server's label. Agents cannot set
// it.
func (s *Server) isServer(name string, node *corev1.Node) bool {
	return slices.Contains(s.opts.ServerNames(), name) || node != nil && node.Labels[names.RoleLabel] == names.RoleServer
}

// label corrects the labels of Nodes.
func (s *Server) label(ctx context.Context) {
	nodes, _ := s.nodes.List(labels.Everything()) // from memory: it does not fail
	for _, node := range nodes {
		changes := s.outdated(node)
		if len(changes) == 0 {
			continue
		}
		if _, err := nodepatch.Merge(ctx, s.client, node.Name, map[string]any{"metadata": map[string]any{"labels": changes}}); err != nil {
			s.opts.Log.Warnf("cannot correct the labels of node %s, retrying in %s: %v", node.Name, tidyEvery, err)
		}
	}
}
