package upgrade

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// CheckSkew refuses to replace one program by another where Kubernetes or etcd do not support that: a minor release
// that is older, or more than one newer.
//
// Sources: https://kubernetes.io/releases/version-skew-policy/, https://etcd.io/docs/v3.6/upgrades/.
func CheckSkew(from, to Program) error {
	for _, c := range []struct{ what, from, to string }{{"Kubernetes", from.Kubernetes, to.Kubernetes}, {"etcd", from.Etcd, to.Etcd}} {
		steps, err := minors(c.from, c.to)
		switch {
		case err != nil:
			return err
		case steps < 0:
			return fmt.Errorf("%s would go back from %s to %s, and an older minor release may not read its data: "+
				"restore a snapshot with that release instead", c.what, c.from, c.to)
		case steps > 1:
			return fmt.Errorf("%s would go from %s to %s, and each minor release between them is needed: upgrade to the next minor release first", c.what, c.from, c.to)
		}
	}
	return nil
}

// CheckAgent refuses a kubelet that is newer than an API server.
func CheckAgent(to Program, server, kubernetes string) error {
	steps, err := minors(kubernetes, to.Kubernetes)
	if err == nil && steps > 0 {
		err = fmt.Errorf("the server %s has Kubernetes %s, and a node must not be newer than a server: upgrade all servers first",
			server, kubernetes)
	}
	return err
}

// oldestKubelet is how many minor releases a kubelet may be older than an API server.
const oldestKubelet = 3

// CheckNode refuses an API server that is too new for another node, which is a server or an agent.
func CheckNode(to Program, node, kubelet string, isServer bool) error {
	steps, err := minors(kubelet, to.Kubernetes)
	switch {
	case err != nil:
		return fmt.Errorf("node %s: %w", node, err)
	case isServer && steps > 1:
		return fmt.Errorf("the server %s has Kubernetes %s, and servers must not be more than one minor release apart: upgrade that one first", node, kubelet)
	case steps > oldestKubelet:
		return fmt.Errorf("the node %s has Kubernetes %s, and a node must not be more than %d minor releases older than a server: "+
			"upgrade that one first", node, kubelet, oldestKubelet)
	}
	return nil
}

// minors returns how many minor releases lie between two versions. Different major releases are an error.
func minors(from, to string) (int, error) {
	a, err := version.ParseGeneric(from)
	if err != nil {
		return 0, err
	}
	b, err := version.ParseGeneric(to)
	if err != nil {
		return 0, err
	}
	if a.Major() != b.Major() {
		return 0, fmt.Errorf("%s and %s are different major releases: there is no upgrade between them", from, to)
	}
	return int(b.Minor()) - int(a.Minor()), nil
}
