package controllermanager

import (
	"testing"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
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
