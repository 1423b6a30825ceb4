// Package status says how the components of this process are, where an operator looks: a condition of the Node, Events about it, and
// metrics.
//
// The Group of components (components/lifecycle) tells the Observer what happens to them. Nothing here starts or ends one.
package status

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"kubelith.io/kubelith/components/lifecycle"
)

const (
	// Condition is the type of the Node's condition. It is True when every component runs.
	Condition corev1.NodeConditionType = "KubelithComponents"

	// Reasons of the condition, of Events, or of both.
	ComponentsReady    = "ComponentsReady"
	ComponentFailed    = "ComponentFailed"    // one is down and starts again
	ComponentAbandoned = "ComponentAbandoned" // an earlier run of one has not ended: its memory and goroutines are lost until the process ends
	ComponentRestarted = "ComponentRestarted" // one is ready again

	// lookAgain is how often the condition is compared without a reason: somebody may have deleted the Node.
	lookAgain = time.Minute
	// retryAfter is the pause after an answer that says that the API or the Node is not there yet.
	retryAfter = time.Second
)

// Options of the component.
type Options struct {
	Observer *Observer // that the Group tells
	NodeName string
	Client   *rest.Config // acts as the node
	Log      logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts Options
	work lifecycle.Watchdog
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

// Healthy implements lifecycle.Health: no report takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once: there may be no Node for long, or never.
func (s *Server) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	return s.run(ctx, cs, ready)
}

func (s *Server) run(ctx context.Context, cs kubernetes.Interface, ready func()) error {
	s.work.Reset()
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cs.CoreV1().Events("")})
	defer broadcaster.Shutdown()
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelith", Host: s.opts.NodeName})
	// As the kubelet's: kubectl describe finds the Events of a Node by its name as UID.
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: s.opts.NodeName, UID: types.UID(s.opts.NodeName)}

	ready()
	wait := time.NewTimer(0)
	defer wait.Stop()
	var told string // the last error, which is told once
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		case <-s.opts.Observer.signal:
		}
		err := s.sync(ctx, cs)
		if err == nil || apierrors.IsNotFound(err) { // there are Events without a Node, of a server without a kubelet
			for _, n := range s.opts.Observer.take() {
				recorder.Event(node, n.kind, n.reason, n.text)
			}
			wait.Reset(lookAgain)
		}
		if err != nil {
			wait.Reset(retryAfter)
		}
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			s.opts.Log.Warnf("the condition %s of the Node is not written yet: %v", Condition, err)
		}
	}
}

// sync makes the condition of the Node what it should be.
func (s *Server) sync(ctx context.Context, cs kubernetes.Interface) error {
	defer s.work.Begin("a report")()
	node, err := cs.CoreV1().Nodes().Get(ctx, s.opts.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	wanted := s.opts.Observer.condition(metav1.Now())
	if i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == Condition }); i >= 0 {
		has := node.Status.Conditions[i]
		if has.Status == wanted.Status && has.Reason == wanted.Reason && has.Message == wanted.Message {
			return nil
		}
		if has.Status == wanted.Status {
			wanted.LastTransitionTime = has.LastTransitionTime
		}
	}
	// A strategic merge patch leaves the conditions of others alone.
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{wanted}}})
	if err != nil {
		return err
	}
	_, err = cs.CoreV1().Nodes().Patch(ctx, s.opts.NodeName, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}
