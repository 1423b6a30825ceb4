package log

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestKilledUnderLoad: the start after kill -9 in the middle of many writes logs nothing more than ten times.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoTestImage: true, NoWait: true, Disable: []string{"kubelet", "containerd", "proxy", "dns"}})
	s.WaitAPI(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	client := s.Client(t)
	var writers sync.WaitGroup
	for range 20 {
		writers.Go(func() {
			for ctx.Err() == nil {
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}
				client.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}) // the server is killed meanwhile
			}
		})
	}
	time.Sleep(5 * time.Second)
	s.Kill9(t)
	cancel()
	writers.Wait()
	before := len(s.Logs())
	s.Launch(t)
	s.WaitAPI(t)
	if line, times := harness.MostRepeated(s.Logs()[before:]); times > 10 {
		t.Errorf("%d times: %s", times, line)
	}
	s.Stop(t)
}
