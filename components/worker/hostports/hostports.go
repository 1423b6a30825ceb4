// Package hostports is the component "host-ports": it reports the ports on which this node's host listens in an
// annotation of the Node, so that no Service of type LoadBalancer takes them.
package hostports

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	nodeutil "k8s.io/kubernetes/pkg/util/node"

	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/reconcile"
)

const (
	// listenEvery is the time between two reads of the host's sockets.
	listenEvery = 5 * time.Second
	// rememberFor is how long a port still counts as the host's after its last listener: programs restart, and some
	// start after us when the machine boots.
	rememberFor = 10 * time.Minute
	// absentEvery is the time between two reads while the Node does not exist yet.
	absentEvery = 500 * time.Millisecond
	// readEvery is how often the Node is read, because it may have been replaced.
	readEvery = 30 * time.Second
)

// Options configures the component.
type Options struct {
	// Client acts as the node.
	Client   *rest.Config
	NodeName string
	Log      logrus.FieldLogger
}

// Server is the component that reports, on each node, the ports on which its host listens, in an annotation of the
// Node.
type Server struct{ opts Options }

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is started.
func New(o Options) *Server { return &Server{o} }

// Name implements lifecycle.Component.
func (h *Server) Name() string { return "host-ports" }

// Needs implements lifecycle.Component.
func (h *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Run implements lifecycle.Component. It is ready at once: the Node may be created later.
func (h *Server) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(h.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	ready()
	r := &reporter{opts: h.opts, client: cs, listeners: func() (sets.Set[hostport.Port], error) { return listeners(hostNet) }, seen: map[hostport.Port]time.Time{}}
	var logged logging.Once
	reconcile.Loop(ctx, nil, 0, func() time.Duration {
		next := listenEvery
		reported, err := r.report(ctx, time.Now())
		switch {
		case err == nil && reported:
			logged.News("", "")
		case err == nil:
			next = absentEvery // there is no Node yet
		case ctx.Err() == nil && logged.News("", err.Error()):
			h.opts.Log.Warnf("cannot report the host's ports, retrying in %s: %v", next, err)
		}
		return next
	})
	return nil
}

// reporter keeps the annotation.
type reporter struct {
	opts      Options
	client    kubernetes.Interface
	listeners func() (sets.Set[hostport.Port], error)

	seen   map[hostport.Port]time.Time // when a program last listened
	has    *string                     // the Node's value, as far as known; nil: no annotation
	readAt time.Time                   // when the Node was read; zero: it did not exist
}

// report reads the sockets and, when necessary, the Node. It returns whether there is a Node that is or was Ready and
// has the current ports.
func (r *reporter) report(ctx context.Context, now time.Time) (bool, error) {
	found, err := r.listeners()
	if err != nil {
		return false, err
	}
	for p := range found {
		r.seen[p] = now
	}
	if now.Sub(r.readAt) >= readEvery {
		if err := r.readNode(ctx, now); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("read Node %s: %w", r.opts.NodeName, err)
		}
	}
	maps.DeleteFunc(r.seen, func(_ hostport.Port, at time.Time) bool { return now.Sub(at) > rememberFor })
	want := hostport.Text(sets.KeySet(r.seen))
	if r.has != nil && *r.has == want {
		return true, nil
	}
	err = nodepatch.Annotate(ctx, r.client, r.opts.NodeName, names.HostPortsAnnotation, want)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write Node %s: %w", r.opts.NodeName, err)
	}
	r.has = &want
	return true, nil
}

// readNode reads the Node's annotation. Ports from before this process stay for a while: their programs may be about to
// start.
func (r *reporter) readNode(ctx context.Context, now time.Time) error {
	first := r.readAt.IsZero()
	r.has, r.readAt = nil, time.Time{}
	node, err := r.client.CoreV1().Nodes().Get(ctx, r.opts.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	text, reported := node.Annotations[names.HostPortsAnnotation]
	if !reported && !nodeutil.IsNodeReady(node) {
		// The annotation is not needed yet, and the write would conflict with those that complete a new Node.
		return apierrors.NewNotFound(corev1.Resource("nodes"), node.Name)
	}
	if r.readAt = now; reported {
		r.has = &text
	}
	if !first {
		return nil
	}
	before, _ := hostport.Of(node)
	for p := range before {
		if _, listens := r.seen[p]; !listens {
			r.seen[p] = now
		}
	}
	return nil
}
