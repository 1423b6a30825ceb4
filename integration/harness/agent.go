package harness

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AgentOptions configure how an agent joins.
type AgentOptions struct {
	// Of is the server that it joins.
	Of *Server
	// URL is passed with --server. Empty: Of's address.
	URL string
	// Token is passed with --token. Empty: no token, as for an agent that has joined before.
	Token string
}

func (o *AgentOptions) args() []string {
	url := o.URL
	if url == "" {
		url = o.Of.URL()
	}
	args := []string{"agent", "--server=" + url}
	if o.Token != "" {
		args = append(args, "--token="+o.Token)
	}
	return args
}

// api returns the server whose API this node belongs to: itself or, for an agent, the one that it joins.
func (s *Server) api() *Server {
	if s.Agent != nil {
		return s.Agent.Of
	}
	return s
}

// NodeName returns the name of this node, or "" if it is the host's.
func (s *Server) NodeName() string {
	if s.opts.NodeName != "" || s.opts.Network == nil {
		return s.opts.NodeName
	}
	return fmt.Sprintf("node-%d", s.Index)
}

// Node returns this node's object.
func (s *Server) Node(t testing.TB) *corev1.Node {
	t.Helper()
	node, err := s.node(t.Context(), s.Client(t))
	if err != nil {
		t.Fatalf("node %s: %v", s.NodeName(), err)
	}
	return node
}

// WaitNotReady waits until the cluster has noticed that this node is down.
func (s *Server) WaitNotReady(t testing.TB, timeout time.Duration) {
	t.Helper()
	client := s.Client(t)
	Eventually(t, timeout, "node "+s.NodeName()+" to be NotReady", func() error {
		node, err := client.CoreV1().Nodes().Get(context.Background(), s.NodeName(), metav1.GetOptions{})
		if err == nil && nodeReady(node) == nil {
			err = fmt.Errorf("it is Ready")
		}
		return err
	})
}

// Token creates a token for agents; args are further arguments of `kubelith token create`.
func (s *Server) Token(t testing.TB, args ...string) string {
	t.Helper()
	res := s.RunBinary(t, append([]string{"token", "create"}, args...)...)
	token := strings.TrimSpace(res.Stdout)
	if res.Code != 0 || token == "" || strings.ContainsAny(token, " \n") {
		t.Fatalf("kubelith token create: exit code %d, printed %q\n%s", res.Code, res.Stdout, res.Stderr)
	}
	return token
}
