package kubelet

import (
	"testing"
	"time"

	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

// Where no connection can be dead, a heartbeat has until the lease ends: it may wait for a slow disk.
func TestHeartbeatTimeout(t *testing.T) {
	for name, tc := range map[string]struct {
		disconnect func()
		frequency  time.Duration
		lease      int32
		want       time.Duration
	}{
		"in the process":                  {nil, 10 * time.Second, 40, 40 * time.Second},
		"in the process, a short lease":   {nil, 10 * time.Second, 5, 5 * time.Second},
		"over connections":                {func() {}, 10 * time.Second, 40, 10 * time.Second},
		"over connections, a short lease": {func() {}, 10 * time.Second, 5, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			up := &options.KubeletServer{KubeletConfiguration: kubeletconfig.KubeletConfiguration{NodeLeaseDurationSeconds: tc.lease}}
			up.NodeStatusUpdateFrequency.Duration = tc.frequency
			s := &Server{opts: Options{Disconnect: tc.disconnect}, upstream: up}
			if got := s.heartbeatTimeout(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
