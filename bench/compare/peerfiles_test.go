package compare

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/version"

	"kubelith.io/kubelith/runtime/cgroups"
	"kubelith.io/kubelith/runtime/images"
	"kubelith.io/kubelith/runtime/payload"
)

// writeConfigs writes the configuration files of the peers.
func (p *peers) writeConfigs() error {
	// containerd's default needs a program of this name.
	links := p.file("cni")
	if err := os.MkdirAll(links, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(p.binDir, payload.Loopback), filepath.Join(links, "loopback")); err != nil {
		return err
	}
	for _, dir := range []string{"/etc/cni/net.d", "/run/containerd", "/var/lib/kubelet", "/var/lib/etcd"} {
		if err := os.MkdirAll(p.Path(dir), 0o700); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(p.file("static-pods"), 0o755); err != nil {
		return err
	}
	for path, content := range map[string]string{
		p.file("containerd.toml"): p.containerdTOML(links),
		p.file("kubelet.yaml"):    p.kubeletYAML(),
		p.file("kube-proxy.yaml"): p.proxyYAML(),
		p.file("Corefile"):        p.corefile(),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// conflist connects pods as Kubelith does, with upstream's programs, for a node with that CIDR.
func conflist(cidr string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "kubelith", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "forceAddress": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": %q, "backend": "nftables", "capabilities": {"portMappings": true}}]}
`, cidr, payload.Portmap)
}

func (p *peers) containerdTOML(links string) string {
	ours, oursCNI := "", ""
	if !p.defaults {
		ours, oursCNI = "stats_collect_period = \"10s\"\n", "use_internal_loopback = true\n"
	}
	return fmt.Sprintf(`version = %d
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
%s[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%q, %q, %q]
conf_dir = "/etc/cni/net.d"
%s[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = %q
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = %q
SystemdCgroup = %v
`, version.ConfigVersion, images.Pause, ours, p.set.peers, p.binDir, links, oursCNI,
		filepath.Join(p.set.peers, payload.Shim), filepath.Join(p.set.peers, payload.Runc), cgroups.DetectCgroupDriver() == cgroups.DriverSystemd)
}

func (p *peers) kubeletYAML() string {
	ours := ""
	if !p.defaults {
		ours = "kubeAPIQPS: 10000\nkubeAPIBurst: 20000\nseccompDefault: true\n"
	}
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
tlsCertFile: %s
tlsPrivateKeyFile: %s
cgroupDriver: %s
cgroupRoot: %s
failCgroupV1: false
failSwapOn: false
clusterDNS: [%s]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://%s
resolvConf: /etc/resolv.conf
staticPodPath: %s
%s`, p.pki.ClusterCA.Cert, p.pki.KubeletServer.Cert, p.pki.KubeletServer.Key, cgroups.DetectCgroupDriver(), p.CgroupRoot(),
		clusterDNS, criSocket, p.file("static-pods"), ours)
}

// proxyYAML leaves the limits of connection tracking alone: they belong to the host, not to a namespace.
func (p *peers) proxyYAML() string {
	ours := ""
	if !p.defaults {
		ours = ", qps: 10000, burst: 20000"
	}
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s%s}
clusterCIDR: %s
hostnameOverride: %s
nodePortAddresses: [primary]
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, p.kubeconfigs["kube-proxy"], ours, p.set.clusterCIDR, p.nodeName)
}

// corefile has the plugins that Kubelith's DNS has.
func (p *peers) corefile() string {
	ours := ""
	if !p.defaults {
		ours = "\n\t\tapiserver_qps 10000\n\t\tapiserver_burst 20000"
	}
	return fmt.Sprintf(`.:%d {
	bind 127.0.0.1 %s
	errors {
		consolidate 30s ".*" warning
	}
	cache 30 {
		disable success cluster.local
		disable denial cluster.local
	}
	loadbalance
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig %s
		pods insecure
		fallthrough in-addr.arpa ip6.arpa
		ttl 5
		startup_timeout 30s%s
	}
	forward . %s {
		max_concurrent 1000
		policy sequential
	}
}
`, dnsPort, p.NodeIP, p.kubeconfigs["coredns"], ours, p.HostIP)
}
