package apiserver

import (
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/controlplane"
)

// TestRenewSlowly: only on a slow disk is the API server's address renewed less often, and its lease lasts for longer
// than that.
func TestRenewSlowly(t *testing.T) {
	for sync, want := range map[time.Duration]time.Duration{
		0:                      0, // upstream's
		400 * time.Millisecond: 10 * time.Second,
		5 * time.Second:        2 * time.Minute,
	} {
		var c controlplane.Config
		renewSlowly(&c, sync)
		if every, lease := c.EndpointReconcilerConfig.Interval, c.Extra.MasterEndpointReconcileTTL; every != want || lease < 2*every {
			t.Errorf("%s for a sync: every %s with a lease of %s, want %s", sync, every, lease, want)
		}
		if slow := c.ControlPlane.PeerEndpointReconcileInterval > 0; slow != (want > 0) {
			t.Errorf("%s for a sync: for others every %s", sync, c.ControlPlane.PeerEndpointReconcileInterval)
		}
	}
}
