package pluginadmin

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/plugins/host"
)

const (
	// resync is how often the conditions are compared with the plugins without an event: the Node may have been
	// deleted.
	resync = time.Minute
	// retryAfter is the pause after an error: the API, the role or the Node may not exist yet.
	retryAfter = 500 * time.Millisecond
)

// ConditionPrefix begins the types of plugins' Node conditions.
const ConditionPrefix = "Plugin/"

// report writes Events and conditions until ctx ends. The first request waits for the API.
func (s *Server) report(ctx context.Context, cs kubernetes.Interface) {
	recorder, stop := events.NewRecorder(ctx, cs, corev1.EventSource{Component: "kubelith-plugins", Host: s.opts.NodeName})
	defer stop()
	node := events.Node(s.opts.NodeName)

	var logged logging.Once
	reconcile.Loop(ctx, s.opts.Observer.signal, 0, func() time.Duration {
		err := s.syncConditions(ctx, cs)
		if err == nil || apierrors.IsNotFound(err) { // a server without a kubelet has no Node, but Events
			for _, c := range s.opts.Observer.take() {
				recorder.Event(node, eventType(c.reason), c.reason, c.text())
			}
		}
		if err == nil {
			return resync
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) && ctx.Err() == nil && logged.News("", err.Error()) {
			s.opts.Log.Warnf("cannot write the plugins' conditions of the Node, retrying: %v", err)
		}
		return retryAfter
	})
}

func eventType(reason string) string {
	if reason == host.PluginReady || reason == host.PluginReplaced {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// text returns the message of the change's Event.
func (c change) text() string {
	subject := fmt.Sprintf("%s plugin %s", c.state.Kind, c.state.Name)
	switch {
	case c.state.Public != "":
		return subject + ": " + c.state.Public
	case c.reason == host.PluginReplaced:
		return subject + ": replaced by " + executable(c.state)
	case c.reason == host.PluginReady:
		return subject + ": ready, " + executable(c.state)
	}
	return subject + ": " + c.state.Phase
}

// executable describes what runs.
func executable(s host.State) string {
	out := s.Path
	if s.Version != "" {
		out += " " + s.Version
	}
	if len(s.SHA256) >= 12 {
		out += " (sha256 " + s.SHA256[:12] + ")"
	}
	return out
}

// syncConditions updates the Node's conditions to the plugins' states.
func (s *Server) syncConditions(ctx context.Context, cs kubernetes.Interface) error {
	node, err := cs.CoreV1().Nodes().Get(ctx, s.opts.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	changes := nodepatch.Conditions(node.Status.Conditions, conditions(s.opts.Host.States()), metav1.Now(), ours)
	if len(changes) == 0 {
		return nil
	}
	return nodepatch.Status(ctx, cs, s.opts.NodeName, map[string]any{"status": map[string]any{"conditions": changes}})
}

// conditions returns those that the Node should have, without times.
func conditions(states []host.State) (wanted []corev1.NodeCondition) {
	for _, state := range states {
		if state.Phase != string(host.Draining) {
			wanted = append(wanted, condition(state))
		}
	}
	return wanted
}

// ours returns true for the types of plugins' conditions, also of plugins that are gone.
func ours(t corev1.NodeConditionType) bool { return strings.HasPrefix(string(t), ConditionPrefix) }

func condition(s host.State) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type:    corev1.NodeConditionType(ConditionPrefix + s.Name),
		Status:  corev1.ConditionFalse,
		Message: s.Public,
	}
	switch host.Phase(s.Phase) {
	case host.Ready:
		c.Status, c.Reason = corev1.ConditionTrue, host.PluginReady
	case host.Unhealthy:
		c.Reason = host.PluginUnhealthy
	case host.Starting:
		c.Reason = "PluginStarting"
	default:
		c.Reason = host.PluginFailed
	}
	if c.Message == "" {
		c.Message = fmt.Sprintf("%s plugin %s", s.Kind, executable(s))
	}
	return c
}
