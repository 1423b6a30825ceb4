package servicelb

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/components/lifecycle"
)

const (
	// listenEvery is the time between two looks at the host's sockets.
	listenEvery = 5 * time.Second
	// rememberFor is how long a port stays the host's after nobody listens on it any more: programs start again, and after the
	// boot of a machine some start after us.
	rememberFor = 10 * time.Minute
	// lookEvery is how often the Node is read, for it may be another one than it was.
	lookEvery = 30 * time.Second
)

// HostPortsOptions is what HostPorts is made of.
type HostPortsOptions struct {
	// Client acts as the node.
	Client   *rest.Config
	NodeName string
	Log      logrus.FieldLogger
}

// HostPorts is the component that tells, on each node, on which ports its host listens: an annotation of the Node.
type HostPorts struct{ opts HostPortsOptions }

var _ lifecycle.Component = (*HostPorts)(nil)

// NewHostPorts returns the component; nothing is started.
func NewHostPorts(o HostPortsOptions) *HostPorts { return &HostPorts{o} }

// Name implements lifecycle.Component.
func (h *HostPorts) Name() string { return "host-ports" }

// Needs implements lifecycle.Component.
func (h *HostPorts) Needs() []string { return []string{"apiserver"} }

// Run implements lifecycle.Component. It is ready at once: the Node may be made later.
func (h *HostPorts) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(h.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	ready()
	t := &teller{opts: h.opts, client: cs, listeners: func() (sets.Set[Port], error) { return listeners(hostNet) }, seen: map[Port]time.Time{}}
	said := ""
	for {
		next := listenEvery
		told, err := t.tell(ctx, time.Now())
		switch {
		case err == nil && told:
			said = ""
		case err == nil:
			next = retryDelay / 4 // there is no Node yet
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			h.opts.Log.Warnf("tell the ports of the host, next try in %s: %v", next, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// teller keeps the annotation.
type teller struct {
	opts      HostPortsOptions
	client    kubernetes.Interface
	listeners func() (sets.Set[Port], error)

	seen   map[Port]time.Time // when somebody last listened
	has    *string            // what the Node has, as far as known; nil: no annotation
	looked time.Time          // when the Node was read; zero: it was not there
}

// tell looks at the sockets and, when it has to, at the Node. It reports whether there is a Node that is Ready or was, and knows now.
func (t *teller) tell(ctx context.Context, now time.Time) (bool, error) {
	found, err := t.listeners()
	if err != nil {
		return false, err
	}
	for p := range found {
		t.seen[p] = now
	}
	if now.Sub(t.looked) >= lookEvery {
		if err := t.look(ctx, now); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("read Node %s: %w", t.opts.NodeName, err)
		}
	}
	maps.DeleteFunc(t.seen, func(_ Port, at time.Time) bool { return now.Sub(at) > rememberFor })
	want := textOf(sets.KeySet(t.seen))
	if t.has != nil && *t.has == want {
		return true, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{HostPortsAnnotation: want}}})
	if err != nil {
		return false, err
	}
	_, err = t.client.CoreV1().Nodes().Patch(ctx, t.opts.NodeName, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write Node %s: %w", t.opts.NodeName, err)
	}
	t.has = &want
	return true, nil
}

// look reads what the Node has. What it had before this process stays for a while: who listened then may be about to start.
func (t *teller) look(ctx context.Context, now time.Time) error {
	first := t.looked.IsZero()
	t.has, t.looked = nil, time.Time{}
	node, err := t.client.CoreV1().Nodes().Get(ctx, t.opts.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	text, told := node.Annotations[HostPortsAnnotation]
	if !told && !reports(node, false) {
		// Nobody wants to know it now, and it would come between those who complete a new Node.
		return apierrors.NewNotFound(corev1.Resource("nodes"), node.Name)
	}
	if t.looked = now; told {
		t.has = &text
	}
	if !first {
		return nil
	}
	before, _ := hostPorts(node)
	for p := range before {
		if _, listens := t.seen[p]; !listens {
			t.seen[p] = now
		}
	}
	return nil
}
