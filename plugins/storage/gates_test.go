package storage

import (
	"testing"

	attach "github.com/kubernetes-csi/external-attacher/v4/pkg/features"
	provision "github.com/kubernetes-csi/external-provisioner/v6/pkg/features"
	resize "github.com/kubernetes-csi/external-resizer/v2/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/features"
)

// TestGates: that it starts is most of it. Without package csigates, or with a path that sorts later, Kubernetes' init
// panics.
func TestGates(t *testing.T) {
	gates := utilfeature.DefaultMutableFeatureGate
	for _, f := range []featuregate.Feature{provision.Topology, provision.CrossNamespaceVolumeDataSource, provision.VolumeAttributesClass,
		provision.ReleaseLeaderElectionOnExit, attach.MutableCSINodeAllocatableCount, attach.ReleaseLeaderElectionOnExit,
		resize.AnnotateFsResize, resize.RecoverVolumeExpansionFailure, resize.VolumeAttributesClass, resize.ReleaseLeaderElectionOnExit} {
		t.Logf("%s=%v", f, gates.Enabled(f)) // panics when it is not known
	}
	if spec := gates.GetAllVersioned()[features.CrossNamespaceVolumeDataSource]; len(spec) == 0 || spec[0].Version.String() != "1.26" {
		t.Errorf("CrossNamespaceVolumeDataSource is not as Kubernetes has it: %v", spec)
	}
}
