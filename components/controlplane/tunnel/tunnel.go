// Package tunnel lets a server reach agents that it cannot connect to: agents behind NAT or a firewall, which open a
// tunnel to the API (base/tunnel) and serve connections to their kubelet and their pods through it.
//
//	agent --GET /kubelith/v1/tunnel--> Handler --reach?--> 204: no tunnel
//	                                       \-------------> 101: a session, as long as the server does not reach the node
//	kubelet client, metrics-server --> Kubelet(direct)  \
//	webhooks, aggregated APIs, proxy --> Cluster(direct) --> route --> session or direct
//
// The component decides by measurement whether a node needs a tunnel, and by what it knows of the cluster which
// connections may go through a node's tunnel (view.go): those to the node and to its pods, whatever the node claims.
package tunnel

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/tunnel"
)

const (
	// measureEvery is how often a server checks whether it reaches a node that has a tunnel.
	measureEvery = time.Minute
	// drainEvery is how often a tunnel that is not needed any more is checked for connections in it.
	drainEvery = time.Second
)

// Options configures the component.
type Options struct {
	// NodeName is the server's.
	NodeName string
	// Addresses decides which addresses can be a node's.
	Addresses nodeaddr.Rules
	// ServiceCIDRs and ClusterCIDRs are the networks of Services and of pods.
	ServiceCIDRs, ClusterCIDRs []string
	// KubeletCA is the file with the CAs of the kubelets' serving certificates.
	KubeletCA string
	// Informers returns those of the process; it is called in Run.
	Informers func() informers.SharedInformerFactory
	// Log receives which nodes need a tunnel.
	Log logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts  Options
	shake func(ctx context.Context, node string, at netip.AddrPort) error
	every time.Duration // measureEvery

	mu       sync.Mutex
	life     context.Context // of Run; nil: it does not run
	handlers sync.WaitGroup
	sessions map[string]*tunnel.Session // by name of the node
	changed  reconcile.Broadcast        // when another node has a session
	cluster  *view                      // nil until the informers have synced
	said     logging.Once
}

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is started.
func New(o Options) *Server {
	s := &Server{opts: o, every: measureEvery, sessions: map[string]*tunnel.Session{}}
	s.shake = nodeaddr.Handshake(o.KubeletCA, o.Addresses.Dialer())
	return s
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "tunnel" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Run implements lifecycle.Component. It is ready when it knows the cluster. When it ends, all tunnels end.
func (s *Server) Run(ctx context.Context, ready func()) error {
	factory := s.opts.Informers()
	cluster, synced := newView(s.opts, factory)
	factory.Start(nil) // those of the process
	if !cache.WaitFor(ctx, "", synced...) {
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.mu.Lock()
	s.life, s.cluster = ctx, cluster
	s.mu.Unlock()
	ready()
	<-ctx.Done()
	s.mu.Lock()
	s.life = nil
	s.mu.Unlock()
	s.handlers.Wait()
	return nil
}

// begin returns the context of a handler, unless the component does not run.
func (s *Server) begin() (context.Context, *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil {
		return nil, nil
	}
	s.handlers.Add(1)
	return s.life, s.cluster
}

// Handler serves tunnel.Path, and passes on other requests. Requests have been authorized.
func (s *Server) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != tunnel.Path {
			next.ServeHTTP(w, r)
			return
		}
		life, cluster := s.begin()
		if life == nil {
			http.Error(w, "the server is starting", http.StatusServiceUnavailable)
			return
		}
		defer s.handlers.Done()
		s.serve(life, cluster, w, r)
	})
}

// serve answers the request of a node for a tunnel, and returns when the tunnel has ended.
func (s *Server) serve(life context.Context, cluster *view, w http.ResponseWriter, r *http.Request) {
	node := nodeOf(r.Context())
	mode := r.Header.Get(tunnel.ModeHeader)
	switch {
	case node == "":
		http.Error(w, "only nodes have tunnels", http.StatusForbidden)
		return
	case r.Method != http.MethodGet, mode != tunnel.Auto && mode != tunnel.Always:
		http.Error(w, "not a request for a tunnel", http.StatusBadRequest)
		return
	}
	w.Header().Set(tunnel.ServerHeader, s.opts.NodeName)
	if slices.Contains(strings.Split(r.Header.Get(tunnel.HaveHeader), ","), s.opts.NodeName) && s.has(node) {
		http.Error(w, "the node has a tunnel of this server", http.StatusConflict)
		return
	}
	reason := "the agent always uses a tunnel"
	if mode == tunnel.Auto {
		kubelet, err := cluster.kubeletOf(node)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable) // the agent retries soon
			return
		}
		if err = s.shake(r.Context(), node, kubelet); err == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		reason = err.Error()
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), tunnel.Protocol) || r.ProtoMajor != 1 {
		http.Error(w, "upgrade to "+tunnel.Protocol+" with HTTP/1.1", http.StatusUpgradeRequired)
		return
	}
	conn, err := upgrade(w, s.opts.NodeName, reason)
	if err != nil {
		s.opts.Log.Warnf("cannot open a tunnel for node %s: %v", node, err)
		return
	}
	session, err := tunnel.Open(r.Context(), conn)
	if err != nil {
		s.opts.Log.Warnf("cannot open a tunnel for node %s: %v", node, err)
		return
	}
	defer session.Close()
	s.add(node, session, mode, reason)
	defer s.remove(node, session)
	s.keep(life, r.Context(), cluster, node, mode, session)
}

// nodeOf returns the name of the node that sends a request; empty: none does.
func nodeOf(ctx context.Context) string {
	who, ok := apirequest.UserFrom(ctx)
	if !ok || !slices.Contains(who.GetGroups(), user.NodesGroup) {
		return ""
	}
	name, is := strings.CutPrefix(who.GetName(), names.NodeUserPrefix)
	if !is {
		return ""
	}
	return name
}

// upgrade takes the connection from the HTTP server.
func upgrade(w http.ResponseWriter, name, reason string) (net.Conn, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		conn.Close()
		return nil, fmt.Errorf("the agent has sent %d bytes before the upgrade", n)
	}
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %s\r\n%s: %s\r\n\r\n",
		tunnel.Protocol, tunnel.ServerHeader, name, tunnel.ReasonHeader, oneline.Of(reason))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// keep returns when the session has ended, when the component or the request does, and when the server reaches the node
// and no connection is left in the tunnel.
func (s *Server) keep(life, request context.Context, cluster *view, node, mode string, session *tunnel.Session) {
	measure := time.NewTicker(s.every)
	defer measure.Stop()
	if mode == tunnel.Always {
		measure.Stop()
	}
	for reached := false; ; {
		select {
		case <-session.Done():
			return
		case <-life.Done():
			return
		case <-request.Done(): // the node was removed
			return
		case <-measure.C:
		}
		if !reached {
			kubelet, err := cluster.kubeletOf(node)
			if err != nil || s.shake(request, node, kubelet) != nil {
				continue
			}
			reached = true
			s.remove(node, session)
			s.forget(node)
			s.opts.Log.Infof("this server reaches node %s: it no longer needs a tunnel", node)
			measure.Reset(drainEvery)
		}
		if session.InUse() == 0 {
			return
		}
	}
}
