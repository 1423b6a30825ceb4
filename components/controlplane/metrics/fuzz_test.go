package metrics

import (
	"bytes"
	"testing"
	"time"
)

// FuzzDecode: whatever a kubelet answers is an error or a batch in which everything is measured.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(answer))
	f.Add([]byte("node_cpu_usage_seconds_total 2\nnode_memory_working_set_bytes 5\n"))
	f.Add([]byte("node_cpu_usage_seconds_total{\"x\"} 2\n"))
	f.Add([]byte("container_start_time_seconds{pod=\"\xff\",pod=\"b\"} NaN -1\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		batch, err := decode(bytes.NewReader(in), "n1", time.Time{})
		if err != nil {
			return
		}
		for name, point := range batch.Nodes {
			if name != "n1" || !complete(point) {
				t.Errorf("node %q: %+v", name, point)
			}
		}
		for pod, point := range batch.Pods {
			for name, c := range point.Containers {
				if !complete(c) {
					t.Errorf("container %q of %v: %+v", name, pod, c)
				}
			}
		}
	})
}
