package pluginadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/events"
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

	wait := time.NewTimer(0)
	defer wait.Stop()
	var lastError string // is logged once
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		case <-s.opts.Observer.signal:
		}
		next := resync
		err := s.syncConditions(ctx, cs)
		if err == nil || apierrors.IsNotFound(err) { // a server without a kubelet has no Node, but Events
			for _, c := range s.opts.Observer.take() {
				recorder.Event(node, eventType(c.reason), c.reason, c.text())
			}
		}
		if err != nil {
			next = retryAfter
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) && ctx.Err() == nil && err.Error() != lastError {
			lastError = err.Error()
			s.opts.Log.Warnf("cannot write the plugins' conditions of the Node, retrying: %v", err)
		}
		wait.Reset(next)
	}
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
	patch := conditionPatch(node.Status.Conditions, s.opts.Host.States(), metav1.Now())
	if len(patch) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": patch}})
	if err != nil {
		return err
	}
	_, err = cs.CoreV1().Nodes().Patch(ctx, s.opts.NodeName, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// conditionPatch returns the elements of a strategic merge patch: new and changed conditions, and directives that
// delete those of removed plugins. It does not touch conditions of others.
func conditionPatch(has []corev1.NodeCondition, states []host.State, now metav1.Time) []any {
	var patch []any
	wanted := map[corev1.NodeConditionType]bool{}
	for _, state := range states {
		if state.Phase == string(host.Draining) {
			continue
		}
		c := condition(state, now)
		wanted[c.Type] = true
		i := slices.IndexFunc(has, func(h corev1.NodeCondition) bool { return h.Type == c.Type })
		if i >= 0 && has[i].Status == c.Status {
			c.LastTransitionTime = has[i].LastTransitionTime
		}
		if i < 0 || has[i].Status != c.Status || has[i].Reason != c.Reason || has[i].Message != c.Message {
			patch = append(patch, c)
		}
	}
	for _, h := range has {
		if strings.HasPrefix(string(h.Type), ConditionPrefix) && !wanted[h.Type] {
			patch = append(patch, map[string]string{"$patch": "delete", "type": string(h.Type)})
		}
	}
	return patch
}

func condition(s host.State, now metav1.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type:               corev1.NodeConditionType(ConditionPrefix + s.Name),
		Status:             corev1.ConditionFalse,
		LastHeartbeatTime:  now,
		LastTransitionTime: now,
		Message:            s.Public,
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
