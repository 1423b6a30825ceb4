// Package csigates lets Kubernetes and the CSI sidecars' libraries share a process.
//
// Each of external-provisioner, -attacher and -resizer registers feature gates in an init function, in the set that is
// Kubernetes' too, and some by names that Kubernetes has with another specification. Kubernetes' own init would panic.
// All three also register ReleaseLeaderElectionOnExit: found here with another specification than theirs, none of their
// sets is taken (an error that they ignore), and Kubernetes' gates are what the libraries read.
//
// Go initialises packages that are ready in the order of their import paths. That is why this is a module of its
// own, whose path sorts before github.com/kubernetes-csi. See docs/adr/018-storage-plugins-speak-csi.md.
package csigates

import (
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

func init() {
	err := utilfeature.DefaultMutableFeatureGate.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		// Locked, unlike theirs: no leader is elected here.
		"ReleaseLeaderElectionOnExit": {Default: false, PreRelease: featuregate.Alpha, LockToDefault: true},
		// Those which only the libraries know, as they have them.
		"Topology":         {Default: true, PreRelease: featuregate.GA},
		"AnnotateFsResize": {Default: false, PreRelease: featuregate.Alpha},
	})
	if err != nil {
		panic(err)
	}
}
