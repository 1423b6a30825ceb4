package kubelet

import (
	"testing"

	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

// A server's kubelet asks for ConfigMaps and Secrets; an agent's watches them, which costs less over a network.
func TestChangeDetection(t *testing.T) {
	for _, c := range []struct {
		name       string
		disconnect func()
		want       kubeletconfig.ResourceChangeDetectionStrategy
	}{
		{"server", nil, kubeletconfig.TTLCacheChangeDetectionStrategy},
		{"agent", func() {}, kubeletconfig.WatchChangeDetectionStrategy},
	} {
		config, err := baseConfig("", Options{Disconnect: c.disconnect})
		if err != nil || config.ConfigMapAndSecretChangeDetectionStrategy != c.want {
			t.Errorf("%s: %v, %v, want %s", c.name, config, err, c.want)
		}
	}
}
