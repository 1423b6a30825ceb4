// Package cluster starts Kubernetes clusters for Go tests: real ones, with the controllers, the scheduler, the garbage
// collector and, if wanted, a node that runs pods.
//
//	func TestOperator(t *testing.T) {
//		t.Parallel()
//		c := cluster.Start(t, cluster.Options{Manifests: []string{"config/crd"}})
//		client := kubernetes.NewForConfigOrDie(c.Config())
//		...
//	}
//
// Start runs the executable kubelith as its own process; the test binary links client-go's rest.Config and nothing of
// the server. A cluster has its own address, data and credentials, so any number of them run at once, in one test
// binary and in several. It ends with the test, and also when the test binary is killed.
//
// A cluster without a node needs no root. Its pods are scheduled nowhere and stay Pending. With Options.Node, pods run;
// this needs root. docs/go-library.md has more.
package cluster
