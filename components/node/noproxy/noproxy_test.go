package noproxy

import (
	"net"
	"net/url"
	"os"
	"testing"

	"golang.org/x/net/http/httpproxy"

	"kubelith.io/kubelith/base/config"
)

// TestNoProxy: nothing of the cluster goes through a proxy, and everything else does, except what the user excludes.
func TestNoProxy(t *testing.T) {
	cluster := &config.ClusterInfo{ClusterCIDR: []string{"10.42.0.0/16", "fd00:42::/56"}, ServiceCIDR: []string{"10.43.0.0/16"}, ClusterDomain: "cluster.local"}
	node := &config.Node{NodeName: "one", NodeIP: []string{"192.0.2.1", "2001:db8::1"}}
	var local []net.Addr
	for _, cidr := range []string{"127.0.0.1/8", "192.0.2.1/25", "203.0.113.1/24", "2001:db8::1/64"} {
		ip, network, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		local = append(local, &net.IPNet{IP: ip, Mask: network.Mask})
	}
	for _, given := range []string{"", "intra.example.com, 198.51.100.0/24", "*"} {
		p := httpproxy.Config{HTTPSProxy: "http://proxy.example.com:3128", NoProxy: noProxy(given, node, cluster, "https://k8s.example.com:6443", local)}
		proxy := p.ProxyFunc()
		for target, direct := range map[string]bool{
			"https://127.0.0.1:6443": true, "https://localhost": true, "https://[::1]:6443": true, "https://one:10250": true,
			"https://192.0.2.1:10250": true, "https://[2001:db8::1]:10250": true, "https://k8s.example.com:6443": true,
			"https://10.42.3.4": true, "https://[fd00:42::7]": true, "https://10.43.0.1": true,
			"https://hook.shop.svc": true, "https://hook.shop.svc.cluster.local": true,
			"https://192.0.2.2:10250": true, "https://[2001:db8::2]:10250": true, // other nodes
			"https://registry.example.org": given == "*", "https://192.0.2.129": given == "*", "https://203.0.113.2": given == "*",
			"https://a.intra.example.com": given != "", "https://198.51.100.7": given != "",
		} {
			u, err := url.Parse(target)
			if err != nil {
				t.Fatal(err)
			}
			if by, err := proxy(u); err != nil || (by == nil) != direct {
				t.Errorf("NO_PROXY=%q: %s goes by %v, %v", given, target, by, err)
			}
		}
	}
}

// TestSet: only where there is a proxy, and in both spellings; what the user gave is kept.
func TestSet(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	node, cluster := &config.Node{NodeName: "one"}, &config.ClusterInfo{}
	if err := Set(node, cluster, ""); err != nil || os.Getenv("NO_PROXY") != "" {
		t.Errorf("without a proxy NO_PROXY is %q, %v", os.Getenv("NO_PROXY"), err)
	}
	t.Setenv("https_proxy", "http://proxy.example.com:3128")
	t.Setenv("no_proxy", "mine")
	const want = "mine,localhost,127.0.0.0/8,::1,one,.svc"
	if err := Set(node, cluster, ""); err != nil || os.Getenv("NO_PROXY") != want || os.Getenv("no_proxy") != want {
		t.Errorf("NO_PROXY is %q, no_proxy %q, %v", os.Getenv("NO_PROXY"), os.Getenv("no_proxy"), err)
	}
}
