// Package events is how components write Events.
package events

import (
	"cmp"
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// NewRecorder returns what writes the Events of a source, a component and perhaps a node, until stop or the end of ctx.
func NewRecorder(ctx context.Context, cs kubernetes.Interface, source corev1.EventSource) (_ record.EventRecorder, stop func()) {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cs.CoreV1().Events("")})
	return b.NewRecorder(scheme.Scheme, source), b.Shutdown
}

// Source is Kubelith as the source of Events, on a node or, without one, in the cluster.
func Source(node string) corev1.EventSource {
	return corev1.EventSource{Component: "kubelith", Host: node}
}

// Node returns what Events about a Node refer to. As in the kubelet's, the UID is its name: kubectl describe finds them
// by that.
func Node(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
}

// maxMessage is how long the API lets an Event's message be, in bytes.
const maxMessage = 1024

// Write creates one Event about an object, and returns why it could not. Most use a recorder, which tries again and
// counts what recurs.
func Write(ctx context.Context, cs kubernetes.Interface, about *corev1.ObjectReference, source corev1.EventSource, kind, reason, message string) error {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	now := metav1.Now()
	_, err := cs.CoreV1().Events(cmp.Or(about.Namespace, metav1.NamespaceDefault)).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: about.Name + "."},
		InvolvedObject: *about,
		Type:           kind, Reason: reason, Message: message,
		Source: source, ReportingController: source.Component,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	return err
}
