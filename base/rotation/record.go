package rotation

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"kubelith.io/kubelith/base/informers"
)

// The keys of the ConfigMap; a server's report is at ReportPrefix plus its name.
const StateKey, ReportPrefix = "state", "server."

// Record is what is stored of a rotation.
type Record[S State, R any] struct {
	State   S
	Reports map[string]R      // by server; one that cannot be read counts as none
	object  *corev1.ConfigMap // nil: there is none
}

func (s *Server[S, R]) maps() corev1client.ConfigMapInterface {
	return s.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
}

// Read returns what is stored; without a ConfigMap it is empty.
func (s *Server[S, R]) Read(ctx context.Context) (Record[S, R], error) {
	cm, err := s.maps().Get(ctx, s.kind.ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Record[S, R]{Reports: map[string]R{}}, nil
	}
	if err != nil {
		return Record[S, R]{}, err
	}
	r := Record[S, R]{Reports: map[string]R{}, object: cm}
	if text := cm.Data[StateKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &r.State); err != nil {
			return r, fmt.Errorf("ConfigMap %s/%s was changed by hand: %w: delete it, and run %s", cm.Namespace, cm.Name, err, s.kind.Command)
		}
	}
	for key, text := range cm.Data {
		name, ok := strings.CutPrefix(key, ReportPrefix)
		var report R
		if ok && json.Unmarshal([]byte(text), &report) == nil {
			r.Reports[name] = report
		}
	}
	return r, nil
}

// publish stores this server's report.
func (s *Server[S, R]) publish(ctx context.Context, report R) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	data := map[string]string{ReportPrefix + s.opts.NodeName: string(text)}
	body, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	_, err = s.maps().Patch(ctx, s.kind.ConfigMap, types.MergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		err = s.create(ctx, data)
	}
	return err
}

// advance stores the next State, if nothing has changed since before was read.
func (s *Server[S, R]) advance(ctx context.Context, before Record[S, R], next S) error {
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if before.object == nil {
		return s.create(ctx, map[string]string{StateKey: string(text)})
	}
	cm := before.object.DeepCopy()
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[StateKey] = string(text)
	_, err = s.maps().Update(ctx, cm, metav1.UpdateOptions{})
	return err
}

func (s *Server[S, R]) create(ctx context.Context, data map[string]string) error {
	_, err := s.maps().Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.kind.ConfigMap}, Data: data}, metav1.CreateOptions{})
	return err
}

// follow wakes the loop when another server has changed the ConfigMap. The returned function ends it and waits.
func (s *Server[S, R]) follow(ctx context.Context) (stop func()) {
	f := informers.One(s.Client, metav1.NamespaceSystem, s.kind.ConfigMap)
	_, _ = f.Core().V1().ConfigMaps().Informer().AddEventHandler(informers.OnEvent(s.wake.Send)) // fails only on a stopped informer
	return informers.Start(ctx, f)
}
