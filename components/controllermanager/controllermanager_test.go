package controllermanager

import (
	"slices"
	"testing"
	"time"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"kubelith.io/kubelith/components/pki"
)

// TestVolumeControllers: a name that upstream no longer has would leave a nil descriptor, and the kubelet's CSI state to chance.
func TestVolumeControllers(t *testing.T) {
	all := app.NewControllerDescriptors()
	for _, name := range volumeControllers {
		if all[name] == nil {
			t.Errorf("upstream has no controller %s", name)
		}
	}
}

// TestJoinDefaults: bootstrap tokens are signed and removed, and certificates live for 90 days, unless the user says otherwise.
func TestJoinDefaults(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		signer bool
		life   time.Duration
	}{
		{nil, true, 90 * 24 * time.Hour},
		{[]string{"controllers=*", "cluster-signing-duration=3m"}, false, 3 * time.Minute},
	} {
		s, err := New(Options{ClusterCIDRs: []string{"10.42.0.0/16"}, ServiceCIDRs: []string{"10.43.0.0/16"}, PKI: &pki.Bundle{}, Args: tc.args})
		if err != nil {
			t.Fatal(err)
		}
		c := s.Upstream().ComponentConfig
		for _, name := range []string{names.BootstrapSignerController, names.TokenCleanerController} {
			if got := slices.Contains(c.Generic.Controllers, name); got != tc.signer {
				t.Errorf("%v: %s runs: %v", tc.args, name, got)
			}
			if app.NewControllerDescriptors()[name] == nil {
				t.Errorf("upstream has no controller %s", name)
			}
		}
		if !slices.Contains(c.Generic.Controllers, "*") {
			t.Errorf("%v: the others do not run: %v", tc.args, c.Generic.Controllers)
		}
		if got := c.CSRSigningController.ClusterSigningDuration.Duration; got != tc.life {
			t.Errorf("%v: certificates live for %s, want %s", tc.args, got, tc.life)
		}
	}
}
