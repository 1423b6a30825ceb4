// Package status reports the state of this process's components where an operator looks: in a condition of the Node, in
// Events about it, and in metrics. It also writes the external addresses that the Node claims, and the names of a
// server's API.
//
// The Group of components (base/lifecycle) sends the Observer its events. Nothing here starts or ends a component.
package status

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/reconcile"
)

const (
	// Condition is the type of the Node's condition. It is True when every component runs.
	Condition corev1.NodeConditionType = "KubelithComponents"

	// Reasons of the condition, of Events, or of both.
	ComponentsReady    = "ComponentsReady"
	ComponentFailed    = "ComponentFailed"    // one is down and will be restarted
	ComponentAbandoned = "ComponentAbandoned" // an earlier run of one has not ended: its memory and goroutines are lost until the process ends
	ComponentRestarted = "ComponentRestarted" // one is ready again

	// checkEvery is how often the condition is compared without an event: the Node may have been deleted.
	checkEvery = time.Minute
	// retryAfter is the pause while the API or the Node is not there yet.
	retryAfter = time.Second
)

// Options of the component.
type Options struct {
	Observer *Observer // receives the Group's events
	NodeName string
	External []string     // addresses at which the node is reached from outside
	APINames []string     // names and addresses of this server's API; none on an agent
	Client   *rest.Config // acts as the node
	// Certificates returns those of this machine; nil: none are reported. With an error it returns those that it can
	// read.
	Certificates func() ([]pki.Certificate, error)
	Log          logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts   Options
	work   lifecycle.Watchdog
	expiry expiry
	unread logging.Once
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is started.
func New(o Options) *Server { return &Server{opts: o} }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "status" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: it fails when a report takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once: the Node may be created much later, or never.
func (s *Server) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	return s.run(ctx, cs, ready)
}

func (s *Server) run(ctx context.Context, cs kubernetes.Interface, ready func()) error {
	s.work.Reset()
	recorder, stop := events.NewRecorder(ctx, cs, events.Source(s.opts.NodeName))
	defer stop()
	node := events.Node(s.opts.NodeName)

	ready()
	var logged logging.Once
	reconcile.Loop(ctx, s.opts.Observer.changed, 0, func() time.Duration {
		s.checkCertificates(time.Now())
		err := s.sync(ctx, cs)
		if err == nil || apierrors.IsNotFound(err) { // without a Node, on a server without a kubelet, there are still Events
			for _, n := range s.opts.Observer.take() {
				recorder.Event(node, n.kind, n.reason, n.text)
			}
		}
		if err == nil {
			return checkEvery
		}
		if !apierrors.IsNotFound(err) && ctx.Err() == nil && logged.News("", err.Error()) {
			s.opts.Log.Warnf("cannot write the condition %s of the Node, retrying: %v", Condition, err)
		}
		return retryAfter
	})
	return nil
}

// sync updates the condition of the Node.
func (s *Server) sync(ctx context.Context, cs kubernetes.Interface) error {
	defer s.work.Begin("writing the condition of the Node")()
	node, err := cs.CoreV1().Nodes().Get(ctx, s.opts.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	patch := map[string]any{}
	if conditions := nodepatch.Conditions(node.Status.Conditions, s.opts.Observer.conditions(), metav1.Now(), reported); len(conditions) > 0 {
		patch["status"] = map[string]any{"conditions": conditions}
	}
	if annotations := claims(node.Annotations, s.opts); len(annotations) > 0 {
		patch["metadata"] = map[string]any{"annotations": annotations}
	}
	if len(patch) == 0 {
		return nil
	}
	return nodepatch.Status(ctx, cs, s.opts.NodeName, patch)
}

// claims returns the annotations of a Node that are to be set, or removed if nil: its external addresses, about which
// the server decides, and the names of its API.
func claims(have map[string]string, o Options) map[string]any {
	patch := map[string]any{}
	for annotation, all := range map[string][]string{names.ExternalIPAnnotation: o.External, names.APINamesAnnotation: o.APINames} {
		value, has := have[annotation]
		switch want := strings.Join(all, ","); {
		case want == "" && has:
			patch[annotation] = nil
		case want != value:
			patch[annotation] = want
		}
	}
	return patch
}
