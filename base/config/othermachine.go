package config

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// ClusterNetworks are settings that cannot change in the life of a cluster.
type ClusterNetworks struct {
	ClusterCIDR, ServiceCIDR []string
	ClusterDomain            string
}

// machineKeys are the settings of one machine, which are wrong on another; and the server that it had joined, since the
// other one has the cluster.
func machineKeys() []string {
	return []string{"nodeName", "nodeIP", "nodeExternalIP", "advertiseAddress", "bindAddress", "server", "token", "tokenFile"}
}

// ForOtherMachine returns the file of a server for another machine that goes on with its cluster: without the keys of
// the machine, which it returns too, and with the cluster's networks where they are not the defaults. text may be
// empty, and so may the result.
func ForOtherMachine(text []byte, cluster ClusterNetworks) (file []byte, leftOut []string, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, nil, err
	}
	if doc.Kind == 0 {
		doc = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, nil, fmt.Errorf("line %d: it has no keys", top.Line)
	}
	has := map[string]bool{}
	var pairs []*yaml.Node
	for i := 0; i+1 < len(top.Content); i += 2 {
		key := top.Content[i].Value
		if slices.Contains(machineKeys(), key) {
			leftOut = append(leftOut, key)
			continue
		}
		has[key] = true
		pairs = append(pairs, top.Content[i], top.Content[i+1])
	}
	add := func(key string, value any) error {
		if has[key] {
			return nil
		}
		node := &yaml.Node{}
		if err := node.Encode(value); err != nil {
			return err
		}
		pairs = append(pairs, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, node)
		return nil
	}
	def := Default()
	var errs []error
	if len(cluster.ClusterCIDR) > 0 && !slices.Equal(cluster.ClusterCIDR, def.ClusterCIDR) {
		errs = append(errs, add("clusterCIDR", cluster.ClusterCIDR))
	}
	if len(cluster.ServiceCIDR) > 0 && !slices.Equal(cluster.ServiceCIDR, def.ServiceCIDR) {
		errs = append(errs, add("serviceCIDR", cluster.ServiceCIDR))
	}
	if cluster.ClusterDomain != "" && cluster.ClusterDomain != def.ClusterDomain {
		errs = append(errs, add("clusterDomain", cluster.ClusterDomain))
	}
	if len(pairs) == 0 {
		return nil, leftOut, nil
	}
	if !has["apiVersion"] {
		errs = append(errs, add("apiVersion", v1alpha1), add("kind", def.kind()))
	}
	for _, err := range errs {
		if err != nil {
			return nil, nil, err
		}
	}
	top.Content = pairs
	file, err = yaml.Marshal(&doc)
	return file, leftOut, err
}
