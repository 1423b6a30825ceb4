package podlink

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/components/worker/policy"
)

// guard begins to write the rules for a pod that will have these addresses, at a port of the bridge; the result waits
// for them.
func (s *Server) guard(ctx context.Context, c *call, port string, addresses []*current.IPConfig) (wait func() error) {
	if s.opts.Guard == nil {
		return func() error { return nil }
	}
	args := c.arguments()
	pod := policy.Pod{
		Sandbox: c.container, Port: port, Namespace: args["K8S_POD_NAMESPACE"], Name: args["K8S_POD_NAME"], UID: types.UID(args["K8S_POD_UID"]),
	}
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.Address.IP); ok {
			pod.IPs = append(pod.IPs, ip.Unmap())
		}
	}
	done := make(chan error, 1)
	go func() { done <- s.opts.Guard.Connect(ctx, pod) }()
	return sync.OnceValue(func() error { return <-done })
}

func (s *Server) unguard(c *call) error {
	if s.opts.Guard == nil {
		return nil
	}
	return s.opts.Guard.Disconnect(c.container)
}

// arguments returns what the runtime passes about the pod.
//
// Source: CNI, CONVENTIONS.md, CNI_ARGS; containerd's CRI names the pod in them.
func (c *call) arguments() map[string]string {
	out := map[string]string{}
	for pair := range strings.SplitSeq(c.args, ";") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			out[name] = value
		}
	}
	return out
}
