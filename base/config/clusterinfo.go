package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

const clusterInfoKind = "ClusterInfo"

// ClusterInfo is what an agent must know about its cluster. Only Kubelith writes it, so reading is lenient where the
// configuration file is strict: a newer server may send more.
type ClusterInfo struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Networks of pods and Services, the primary family first; both have the same families.
	ClusterCIDR   []string `json:"clusterCIDR"`
	ServiceCIDR   []string `json:"serviceCIDR"`
	ClusterDomain string   `json:"clusterDomain"`
	ClusterDNS    []string `json:"clusterDNS"` // addresses of the cluster DNS, one per family
	Network       string   `json:"network"`    // as Server.Network
	Profile       string   `json:"profile,omitempty"`
	VIP           string   `json:"vip,omitempty"` // the virtual address of the API, if the server has one
	// Versions of the server, with a leading v.
	KubernetesVersion string `json:"kubernetesVersion"`
	KubelithVersion   string `json:"kubelithVersion"`
}

// ClusterInfo returns what this server sends to its agents; the versions are its own.
func (s *Server) ClusterInfo(kubernetes, kubelith string) *ClusterInfo {
	info := &ClusterInfo{
		APIVersion:        v1alpha1,
		Kind:              clusterInfoKind,
		ClusterCIDR:       s.ClusterCIDR,
		ServiceCIDR:       s.ServiceCIDR,
		ClusterDomain:     s.ClusterDomain,
		Network:           s.Network,
		Profile:           s.Profile,
		KubernetesVersion: kubernetes,
		KubelithVersion:   kubelith,
	}
	if ip := s.VirtualAddress(); ip.IsValid() {
		info.VIP = ip.String()
	}
	for _, ip := range s.ClusterDNS() {
		info.ClusterDNS = append(info.ClusterDNS, ip.String())
	}
	return info
}

// DNSIPs returns ClusterDNS parsed. The addresses must be valid.
func (c *ClusterInfo) DNSIPs() []net.IP { return parsed(c.ClusterDNS) }

// ParseClusterInfo reads the JSON form. An error says what to do.
func ParseClusterInfo(data []byte) (*ClusterInfo, error) {
	var info ClusterInfo
	if err := json.Unmarshal(data, &info); err != nil {
		return nil, fmt.Errorf("the cluster's settings cannot be decoded: %w", err)
	}
	if info.APIVersion != v1alpha1 || info.Kind != clusterInfoKind {
		return nil, fmt.Errorf("the cluster's settings are %s %s and this kubelith reads %s %s: install the server's version of kubelith here",
			info.APIVersion, info.Kind, v1alpha1, clusterInfoKind)
	}
	if len(info.ClusterCIDR) == 0 || len(info.ServiceCIDR) == 0 {
		return nil, errors.New("the cluster's settings have no networks: restart the server, which writes them")
	}
	return &info, nil
}

// ValidateIn checks what Validate could not: that this node's addresses fit the cluster that it joins. They must be
// valid.
func (a *Agent) ValidateIn(cluster *ClusterInfo) error {
	var p problems
	has := map[string]bool{} // families of the cluster; true: the node has an address of it
	for _, c := range cluster.ClusterCIDR {
		if prefix, err := netip.ParsePrefix(c); err == nil {
			has[family(prefix.Addr())] = false
		}
	}
	fits := func(key, text string) string {
		ip := netip.MustParseAddr(text)
		f := family(ip)
		if _, known := has[f]; !known {
			p.add(key, "%s is %s and the cluster has no %s network: leave the address out", ip, f, f)
		}
		for _, c := range append(append([]string(nil), cluster.ClusterCIDR...), cluster.ServiceCIDR...) {
			if prefix, err := netip.ParsePrefix(c); err == nil && prefix.Contains(ip) {
				p.add(key, "%s is in %s, one of the cluster's networks: give this machine another address", ip, c)
			}
		}
		return f
	}
	for _, text := range a.NodeExternalIP {
		fits("nodeExternalIP", text)
	}
	for _, text := range a.NodeIP {
		has[fits("nodeIP", text)] = true
	}
	if first, err := netip.ParsePrefix(cluster.ClusterCIDR[0]); err == nil && !has[family(first.Addr())] {
		p.add("nodeIP", "has no %s address, the family of the cluster's first network: add one", family(first.Addr()))
	}
	return errors.Join(p...)
}

// Adopt takes the settings of the cluster that this server shares with others. A setting that is neither the default
// nor the cluster's is an error, with a line for each.
func (s *Server) Adopt(cluster *ClusterInfo) error {
	var p problems
	def := Default()
	for _, list := range []struct {
		key           string
		mine          *[]string
		usual, theirs []string
	}{
		{"clusterCIDR", &s.ClusterCIDR, def.ClusterCIDR, cluster.ClusterCIDR},
		{"serviceCIDR", &s.ServiceCIDR, def.ServiceCIDR, cluster.ServiceCIDR},
	} {
		if !slices.Equal(*list.mine, list.usual) && !slices.Equal(*list.mine, list.theirs) {
			p.add(list.key, differs, strings.Join(*list.mine, ","), strings.Join(list.theirs, ","))
		}
		*list.mine = list.theirs
	}
	for _, one := range []struct {
		key           string
		mine          *string
		usual, theirs string
	}{
		{"clusterDomain", &s.ClusterDomain, def.ClusterDomain, cluster.ClusterDomain},
		{"network", &s.Network, def.Network, cluster.Network},
		{"profile", &s.Profile, def.Profile, cluster.Profile},
	} {
		if *one.mine != one.usual && *one.mine != one.theirs {
			p.add(one.key, differs, *one.mine, one.theirs)
		}
		*one.mine = one.theirs
	}
	// It can be changed later, and is not fixed by the join (components/controlplane/vip).
	if s.VIP == "" {
		s.VIP, s.VIPAdopted = cluster.VIP, cluster.VIP != ""
	}
	return errors.Join(p...)
}

// SameVIP refuses the virtual address of a server that is about to join a cluster with another one.
func (s *Server) SameVIP(cluster *ClusterInfo) error {
	var p problems
	if ip := s.VirtualAddress(); ip.IsValid() && ip.String() != cluster.VIP {
		p.add("vip", differs, ip, cluster.VIP)
	}
	return errors.Join(p...)
}

const differs = "%s is not the setting of the cluster, which has %q: leave it out"
