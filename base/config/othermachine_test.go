package config

import (
	"slices"
	"testing"
)

func TestForOtherMachine(t *testing.T) {
	const file = `# ours
apiVersion: kubelith.io/v1alpha1
kind: ServerConfig
nodeName: first
nodeIP: [10.0.0.1] # of eth1
server: https://10.0.0.9:6443 # this machine has joined
tokenFile: /etc/kubelith/token
profile: cis # audited
`
	defaults := ClusterNetworks{ClusterCIDR: Default().ClusterCIDR, ServiceCIDR: Default().ServiceCIDR, ClusterDomain: "cluster.local"}
	for name, c := range map[string]struct {
		text, want string
		networks   ClusterNetworks
		leftOut    []string
	}{
		"none": {"", "", defaults, nil},
		"file": {file, "# ours\napiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nprofile: cis # audited\n", defaults, []string{"nodeName", "nodeIP", "server", "tokenFile"}},
		"networks from flags": {"", "clusterCIDR:\n    - 10.9.0.0/16\nclusterDomain: home.arpa\napiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n",
			ClusterNetworks{ClusterCIDR: []string{"10.9.0.0/16"}, ServiceCIDR: Default().ServiceCIDR, ClusterDomain: "home.arpa"}, nil},
	} {
		got, leftOut, err := ForOtherMachine([]byte(c.text), c.networks)
		if err != nil || string(got) != c.want || !slices.Equal(leftOut, c.leftOut) {
			t.Errorf("%s: %v\n%s\nleft out %q", name, err, got, leftOut)
		}
		if s := Default(); len(got) > 0 {
			if err := decode("f", got, s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, _, err := ForOtherMachine([]byte("- a\n"), defaults); err == nil {
		t.Error("a list was accepted")
	}
}
