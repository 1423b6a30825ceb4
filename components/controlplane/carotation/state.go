package carotation

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	nodeutil "k8s.io/kubernetes/pkg/util/node"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

// done is the phase of a rotation that has ended.
const done pki.Phase = "done"

// State is where a rotation is.
type State struct {
	pki.Rotation
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	// Since is when the phase began.
	Since time.Time `json:"since,omitzero"`
	// Grace is how many seconds the first phase lasts at least.
	Grace int64 `json:"grace,omitempty"`
	// Force leaves agents behind that are not Ready.
	Force bool `json:"force,omitempty"`
}

func (st State) active() bool { return st.Phase != "" && st.Phase != done }

// described says to an administrator what the machines are doing.
func (st State) described() string {
	switch st.Phase {
	case pki.Trust:
		return "every machine trusts the new CAs, too"
	case pki.Sign:
		return "every machine gets certificates of the new CAs"
	case pki.Serve:
		return "the API serves with a certificate of the new CA"
	case pki.Drop:
		return "every machine forgets the former CAs"
	}
	return "done"
}

// Report is what a server has done.
type Report struct {
	pki.Rotation
	Problem string `json:"problem,omitempty"` // why it does not do what the phase asks for
}

// lacks returns what a server has not done yet in the phase, else nothing.
func (st State) lacks(r Report) string {
	switch {
	case r.Problem != "":
		return r.Problem
	case r.ID != st.ID:
		return "it has not begun"
	case !r.Phase.Reached(st.Phase):
		return "it is in phase " + string(r.Phase)
	}
	return ""
}

// nodeLacks is the same for a Node, whose agent reports in an annotation. Other nodes have nothing to do.
func (st State) nodeLacks(n *corev1.Node) string {
	if n.Labels[names.RoleLabel] != names.RoleAgent {
		return ""
	}
	r := pki.ParseReport(n.Annotations[names.CAAnnotation])
	switch {
	case r.ID == st.ID && r.Phase.Reached(st.Phase):
		return ""
	case nodeutil.IsNodeReady(n) && r.ID != st.ID:
		return "it has not begun"
	case nodeutil.IsNodeReady(n):
		return "it is in phase " + string(r.Phase)
	case st.Force:
		return ""
	}
	return "it is not Ready"
}

// left is how long the phase lasts at least.
func (st State) left(now time.Time) time.Duration {
	atLeast := time.Duration(0)
	switch st.Phase {
	case pki.Trust:
		atLeast = time.Duration(st.Grace) * time.Second
	case pki.Sign:
		atLeast = settle
	}
	return max(0, st.Since.Add(atLeast).Sub(now))
}

// waiting names the machines that hold up the phase.
func (st State) waiting(servers []string, reports map[string]Report, nodes []corev1.Node, now time.Time) string {
	var all []string
	for _, name := range servers {
		switch why := st.lacks(reports[name]); {
		case name == "":
			all = append(all, "a server that joins")
		case why != "":
			all = append(all, fmt.Sprintf("server %s: %s", name, why))
		}
	}
	for i := range nodes {
		if why := st.nodeLacks(&nodes[i]); why != "" {
			all = append(all, fmt.Sprintf("agent %s: %s", nodes[i].Name, why))
		}
	}
	if left := st.left(now).Round(time.Second); len(all) == 0 && left > 0 {
		what := "connections to kubelets that began with the former certificates"
		if st.Phase == pki.Trust {
			what = "pods to read the new CA"
		}
		all = append(all, fmt.Sprintf("%s, until %s", what, now.Add(left).UTC().Format(time.RFC3339)))
	}
	return strings.Join(all, "; ")
}

// next returns the state that follows, or what it waits for.
func (st State) next(servers []string, reports map[string]Report, nodes []corev1.Node, now time.Time) (next State, waiting string) {
	if len(servers) == 0 {
		return st, "the servers are not known"
	}
	if waiting = st.waiting(servers, reports, nodes, now); waiting != "" {
		return st, waiting
	}
	next = st
	next.Since = now.UTC()
	switch st.Phase {
	case pki.Trust:
		next.Phase = pki.Sign
	case pki.Sign:
		next.Phase = pki.Serve
	case pki.Serve:
		next.Phase = pki.Drop
	case pki.Drop:
		next.Phase, next.Finished = done, now.UTC().Truncate(time.Second)
	}
	return next, ""
}

// The keys of the ConfigMap; a server's report is at reportPrefix plus its name.
const stateKey, reportPrefix = "state", "server."

// record is the ConfigMap.
type record struct {
	State   State
	Reports map[string]Report
	object  *corev1.ConfigMap // nil: there is none
}

func decode(cm *corev1.ConfigMap) (record, error) {
	r := record{Reports: map[string]Report{}, object: cm}
	if text := cm.Data[stateKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &r.State); err != nil {
			return r, fmt.Errorf("ConfigMap %s/%s was changed by hand: %w: delete it, and run kubelith certificate rotate-ca", cm.Namespace, cm.Name, err)
		}
	}
	for key, text := range cm.Data {
		name, ok := strings.CutPrefix(key, reportPrefix)
		var report Report
		if ok && json.Unmarshal([]byte(text), &report) == nil {
			r.Reports[name] = report
		}
	}
	return r, nil
}

// read returns what is stored; without a ConfigMap it is empty.
func (s *Server) read(ctx context.Context) (record, error) {
	cm, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, names.CARotation, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return record{Reports: map[string]Report{}}, nil
	}
	if err != nil {
		return record{}, err
	}
	return decode(cm)
}

// publish stores this server's report.
func (s *Server) publish(ctx context.Context, r Report) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"data": map[string]string{reportPrefix + s.opts.Name: string(text)}})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Patch(ctx, names.CARotation, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// advance stores the next state, if nothing has changed since before was read.
func (s *Server) advance(ctx context.Context, before record, next State) error {
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	maps := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	if before.object == nil {
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.CARotation}, Data: map[string]string{stateKey: string(text)}}, metav1.CreateOptions{})
		return err
	}
	cm := before.object.DeepCopy()
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[stateKey] = string(text)
	_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	return err
}

// follow looks again when another server has changed the ConfigMap. The returned function ends it and waits.
func (s *Server) follow(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	f := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, names.CARotation).String()
		}))
	// Adding a handler fails only on a stopped informer.
	_, _ = f.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.wake.Send() },
		UpdateFunc: func(any, any) { s.wake.Send() },
	})
	f.Start(ctx.Done())
	return func() {
		cancel()
		f.Shutdown()
	}
}
