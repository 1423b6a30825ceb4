// Package noproxy keeps the connections within a cluster off a company's proxy: it sets NO_PROXY for this process and
// for the programs that it starts.
package noproxy

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"kubelith.io/kubelith/base/config"
)

// Set adds to NO_PROXY what is never behind a company's proxy: this machine and the network that it is in, where the
// other nodes usually are, the server, and the cluster's pods, Services and names. Programs read the variable once, so
// it is set before any connection. Without a proxy it is left alone.
func Set(node *config.Node, cluster *config.ClusterInfo, server string) error {
	proxies := []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"}
	if !slices.ContainsFunc(proxies, func(name string) bool { return os.Getenv(name) != "" }) {
		return nil
	}
	given := os.Getenv("NO_PROXY")
	if given == "" {
		given = os.Getenv("no_proxy")
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	value := noProxy(given, node, cluster, server, local)
	for _, name := range []string{"NO_PROXY", "no_proxy"} { // some programs read one, some the other
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// noProxy returns a NO_PROXY with the user's entries first, then everything of the cluster. local has the addresses of
// this machine's interfaces.
func noProxy(given string, node *config.Node, cluster *config.ClusterInfo, server string, local []net.Addr) string {
	var all []string
	add := func(entries ...string) {
		for _, e := range entries {
			if e = strings.TrimSpace(e); e != "" && !slices.Contains(all, e) {
				all = append(all, e)
			}
		}
	}
	add(strings.Split(given, ",")...)
	add("localhost", "127.0.0.0/8", "::1", node.NodeName)
	add(node.NodeIP...)
	add(networksOf(node.NodeIP, local)...)
	if u, err := url.Parse(server); err == nil {
		add(u.Hostname())
	}
	add(cluster.ClusterCIDR...)
	add(cluster.ServiceCIDR...)
	add(".svc")
	if cluster.ClusterDomain != "" {
		add("." + cluster.ClusterDomain)
	}
	return strings.Join(all, ",")
}

// networksOf returns the networks in which the machine has one of these addresses. The API server calls the kubelets
// there.
func networksOf(addresses []string, local []net.Addr) []string {
	var out []string
	for _, a := range local {
		if at, ok := a.(*net.IPNet); ok && slices.Contains(addresses, at.IP.String()) {
			out = append(out, (&net.IPNet{IP: at.IP.Mask(at.Mask), Mask: at.Mask}).String())
		}
	}
	return out
}
