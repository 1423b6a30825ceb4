package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
)

// healthz is upstream's health server. All runs of the component share it: its socket cannot be closed.
type healthz struct {
	address string
	server  *healthcheck.ProxyHealthServer
	node    atomic.Pointer[node] // that of the last run

	mu      sync.Mutex
	serving bool
	ended   chan error // the error that ended it
}

func newHealthz(c *kubeproxyconfig.KubeProxyConfiguration) *healthz {
	h := &healthz{address: c.HealthzBindAddress, ended: make(chan error, 1)}
	h.server = healthcheck.NewProxyHealthServer(c.HealthzBindAddress, 2*c.SyncPeriod.Duration, h)
	return h
}

// follow makes the server use a run's Node.
func (h *healthz) follow(n *node) { h.node.Store(n) }

// Node returns the Node for upstream.
func (h *healthz) Node() *corev1.Node {
	if n := h.node.Load(); n != nil {
		return n.Node()
	}
	return nil
}

// serve starts the server, unless an earlier run has, and returns a channel that reports its end.
func (h *healthz) serve() (ended <-chan error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.address == "" || h.serving {
		return h.ended
	}
	h.serving = true
	go func() {
		err := h.server.Run(context.Background()) // it ignores its context
		if err == nil {
			err = errors.New("it stopped unexpectedly")
		}
		h.mu.Lock()
		h.serving = false // the next run tries again
		h.mu.Unlock()
		h.ended <- err
	}()
	return h.ended
}
