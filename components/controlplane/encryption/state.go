package encryption

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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

// Phase is what the servers are doing; each asks for what the one before did, too.
type Phase string

// The phases, in their order. Without a rotation it is empty or phaseDone.
const (
	phaseDistribute Phase = "distribute"
	phaseWrite      Phase = "write"
	phaseRewrite    Phase = "rewrite"
	phaseDrop       Phase = "drop"
	phaseDone       Phase = "done"
)

// described says it to an administrator.
func (p Phase) described() string {
	switch p {
	case phaseDistribute:
		return "every server gets it"
	case phaseWrite:
		return "every server begins to encrypt with it"
	case phaseRewrite:
		return "the Secrets are written again"
	case phaseDrop:
		return "every server drops the other keys"
	}
	return "done"
}

// State is where a rotation is.
type State struct {
	Key      string    `json:"key,omitempty"` // its name
	Phase    Phase     `json:"phase,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
}

func (st State) active() bool { return st.Phase != "" && st.Phase != phaseDone }

// arrange returns the keys that a server has in this phase, of which the first encrypts. The new key is among them.
func (st State) arrange(keys []pki.EncryptionKey) []pki.EncryptionKey {
	i := slices.IndexFunc(keys, func(k pki.EncryptionKey) bool { return k.Name == st.Key })
	if i < 0 {
		return keys
	}
	key := keys[i]
	switch st.Phase {
	case phaseWrite, phaseRewrite:
		return append([]pki.EncryptionKey{key}, slices.Delete(slices.Clone(keys), i, i+1)...)
	case phaseDrop:
		return []pki.EncryptionKey{key}
	}
	return keys
}

// Report is what a server's API server has loaded.
type Report struct {
	Writes  string   `json:"writes,omitempty"`  // the key that encrypts
	Reads   []string `json:"reads,omitempty"`   // all keys
	Problem string   `json:"problem,omitempty"` // why it does not do what the phase asks for
}

func (r Report) equal(o Report) bool {
	return r.Writes == o.Writes && r.Problem == o.Problem && slices.Equal(r.Reads, o.Reads)
}

// lacks returns what a server has not done yet in the phase, else nothing.
func (st State) lacks(r Report) string {
	switch {
	case r.Problem != "":
		return r.Problem
	case r.Writes == "":
		return "it has not reported"
	case st.Phase == phaseDistribute && !slices.Contains(r.Reads, st.Key):
		return "it has not loaded the new key"
	case (st.Phase == phaseWrite || st.Phase == phaseRewrite) && r.Writes != st.Key:
		return "it does not encrypt with the new key yet"
	case st.Phase == phaseDrop && !slices.Equal(r.Reads, []string{st.Key}):
		return "it has not dropped the other keys"
	}
	return ""
}

// waiting names the servers that hold up the phase.
func (st State) waiting(servers []string, reports map[string]Report) string {
	var all []string
	for _, name := range servers {
		switch why := st.lacks(reports[name]); {
		case name == "":
			all = append(all, "a server that joins")
		case why != "":
			all = append(all, fmt.Sprintf("server %s: %s", name, why))
		}
	}
	return strings.Join(all, "; ")
}

// next returns the state that follows, or what it waits for. remaining is how many Secrets other keys encrypt.
func (st State) next(servers []string, reports map[string]Report, remaining int, now time.Time) (next State, waiting string) {
	if len(servers) == 0 {
		return st, "the servers are not known"
	}
	if waiting = st.waiting(servers, reports); waiting != "" {
		return st, waiting
	}
	next = st
	switch st.Phase {
	case phaseDistribute:
		next.Phase = phaseWrite
	case phaseWrite:
		next.Phase = phaseRewrite
	case phaseRewrite:
		if remaining > 0 {
			return st, fmt.Sprintf("%d Secrets", remaining)
		}
		next.Phase = phaseDrop
	case phaseDrop:
		next.Phase, next.Finished = phaseDone, now.UTC().Truncate(time.Second)
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
			return r, fmt.Errorf("ConfigMap %s/%s was changed by hand: %w: delete it", cm.Namespace, cm.Name, err)
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
	cm, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, names.EncryptionState, metav1.GetOptions{})
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
	data := map[string]string{reportPrefix + s.opts.Name: string(text)}
	body, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	maps := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err = maps.Patch(ctx, names.EncryptionState, types.MergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.EncryptionState}, Data: data}, metav1.CreateOptions{})
	}
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
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.EncryptionState}, Data: map[string]string{stateKey: string(text)}}, metav1.CreateOptions{})
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
			l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, names.EncryptionState).String()
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
