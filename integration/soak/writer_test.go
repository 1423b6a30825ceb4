package soak

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/harness"
)

// writer writes all the time, whatever happens to the server, and remembers what was acknowledged.
type writer struct {
	client kubernetes.Interface
	end    context.CancelFunc
	ended  sync.WaitGroup

	mu    sync.Mutex
	total int
	acked map[string]int // the number in each ConfigMap that the server has acknowledged last
	sent  map[string]int // and the one that it was asked for last, acknowledged or not
}

// slots is how many objects it writes, in turn.
const slots = 50

func startWriter(t *testing.T, s *harness.Server) *writer {
	t.Helper()
	w := &writer{client: s.Client(t), acked: map[string]int{}, sent: map[string]int{}}
	ctx, end := context.WithCancel(context.Background())
	w.end = end
	t.Cleanup(end)
	w.ended.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			w.write(ctx, n)
			time.Sleep(harness.Patience(20 * time.Millisecond))
		}
	})
	return w
}

func (w *writer) write(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	name := fmt.Sprintf("soak-%d", n%slots)
	w.mu.Lock()
	w.sent[name] = n
	w.mu.Unlock()
	maps := w.client.CoreV1().ConfigMaps(namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"n": strconv.Itoa(n)}}
	if _, err := maps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
		if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return
		}
	}
	w.mu.Lock()
	w.acked[name] = n
	w.total++
	w.mu.Unlock()
}

func (w *writer) stop(t *testing.T) {
	t.Helper()
	w.end()
	w.ended.Wait()
	if len(w.acked) == 0 {
		t.Error("nothing was acknowledged in all the time")
	}
	t.Logf("%d writes were acknowledged, to %d objects", w.total, len(w.acked))
}

// lost are the objects that hold neither what was acknowledged last nor what was sent after it.
func (w *writer) lost(t *testing.T, s *harness.Server) []string {
	t.Helper()
	var out []string
	for name, acked := range w.acked {
		object, err := s.Client(t).CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			out = append(out, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		if n, _ := strconv.Atoi(object.Data["n"]); n < acked || n > w.sent[name] {
			out = append(out, fmt.Sprintf("%s has %d; %d was acknowledged and %d sent", name, n, acked, w.sent[name]))
		}
	}
	return out
}
