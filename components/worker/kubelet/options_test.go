package kubelet

import (
	"strings"
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

// With external addresses the server sets those of the Node, and no cloud provider.
func TestExternalIPs(t *testing.T) {
	up, err := upstreamServer(Options{ExternalIPs: true})
	if err != nil || up.CloudProvider != "external" {
		t.Errorf("%v, %v", up, err)
	}
	for _, arguments := range [][]string{{"cloud-provider=external"}, {"--cloud_provider="}} {
		if _, err := upstreamServer(Options{ExternalIPs: true, Args: arguments}); err == nil || !strings.Contains(err.Error(), "--node-external-ip") {
			t.Errorf("with %v: %v", arguments, err)
		}
	}
	if up, err := upstreamServer(Options{Args: []string{"cloud-provider=external"}}); err != nil || up.CloudProvider != "external" {
		t.Errorf("a cloud provider: %v", err)
	}
}
