package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// dnsOffset is the position of the cluster DNS in the service CIDR, by kubeadm's convention.
const dnsOffset = 10

// APIServiceIPs returns the address of the Service "kubernetes", the first of each service CIDR. The CIDRs must be
// valid.
func (s *Server) APIServiceIPs() []net.IP { return nth(s.ServiceCIDR, 1) }

// ClusterDNS returns the address of the cluster DNS, the tenth of each service CIDR. The CIDRs must be valid.
func (s *Server) ClusterDNS() []net.IP { return nth(s.ServiceCIDR, dnsOffset) }

func nth(cidrs []string, n int) []net.IP {
	ips := make([]net.IP, 0, len(cidrs))
	for _, c := range cidrs {
		prefix, err := netip.ParsePrefix(c)
		if err != nil {
			continue // only before Validate
		}
		addr := prefix.Masked().Addr()
		for range n {
			addr = addr.Next()
		}
		ips = append(ips, net.IP(addr.AsSlice()))
	}
	return ips
}

func (s *Server) validateAddresses(p *problems) {
	pods := parseCIDRs(p, "clusterCIDR", s.ClusterCIDR)
	services := parseCIDRs(p, "serviceCIDR", s.ServiceCIDR)
	if len(pods) > 0 && len(services) > 0 {
		s.validateCIDRs(p, pods, services)
	}
	s.validateNodeIPs(p, pods, services)
	if _, err := netip.ParseAddr(s.BindAddress); err != nil {
		p.add("bindAddress", "%q is not an IP address: use 0.0.0.0 for all interfaces and both families", s.BindAddress)
	}
	if s.AdvertiseAddress != "" {
		ip, err := netip.ParseAddr(s.AdvertiseAddress)
		switch {
		case err != nil:
			p.add("advertiseAddress", "%q is not an IP address", s.AdvertiseAddress)
		case ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast():
			p.add("advertiseAddress", "others cannot reach %s: use an address of this node", ip)
		case len(services) > 0 && family(ip) != family(services[0].Addr()):
			p.add("advertiseAddress", "%s is %s but the first service CIDR is %s: they must be of one family", ip, family(ip), family(services[0].Addr()))
		}
	}
	s.validateVIP(p, pods, services)
	for _, san := range s.TLSSAN {
		if _, err := netip.ParseAddr(san); err == nil {
			continue
		}
		if len(validation.IsDNS1123Subdomain(san)) > 0 && len(validation.IsWildcardDNS1123Subdomain(san)) > 0 {
			p.add("tlsSAN", "%q is neither an IP address nor a DNS name", san)
		}
	}
	if errs := validation.IsDNS1123Subdomain(s.ClusterDomain); len(errs) > 0 {
		p.add("clusterDomain", "%q is not a DNS domain: use lower-case letters, digits, '-' and '.', as in cluster.local", s.ClusterDomain)
	}
}

// validateVIP checks the virtual address.
func (s *Server) validateVIP(p *problems, pods, services []netip.Prefix) {
	if s.VIP == "" || s.VIP == VIPNone {
		return
	}
	ip, err := netip.ParseAddr(s.VIP)
	if err != nil || ip.Zone() != "" || ip.Is4In6() {
		p.add("vip", "%q is not an IP address: use an unused one of the network that the servers share, or %s", s.VIP, VIPNone)
		return
	}
	if !ip.IsGlobalUnicast() {
		p.add("vip", "clients cannot reach %s: use an unused address of the network that the servers share", ip)
	}
	for _, c := range slices.Concat(pods, services) {
		if c.Contains(ip) {
			p.add("vip", "%s is in %s, one of the cluster's networks: use an unused address of the network that the servers share", ip, c)
		}
	}
	if slices.Contains(s.NodeIP, ip.String()) || s.AdvertiseAddress == ip.String() {
		p.add("vip", "%s is this server's own address: use one that no machine has", ip)
	}
	if bind, err := netip.ParseAddr(s.BindAddress); err == nil && !bind.IsUnspecified() {
		p.add("vip", "the API is served at %s only: leave %s out", bind, label("bindAddress"))
	}
}

// parseCIDRs records the errors in a list of CIDRs. It returns the parsed list, or nil when there is an error.
func parseCIDRs(p *problems, key string, cidrs []string) []netip.Prefix {
	if len(cidrs) == 0 {
		p.add(key, "is empty: give it a network such as 10.42.0.0/16")
		return nil
	}
	var out []netip.Prefix
	seen := map[string]string{}
	before := len(*p)
	for _, c := range cidrs {
		prefix, err := netip.ParsePrefix(c)
		if err != nil || prefix.Addr().Is4In6() {
			p.add(key, "%q is not a CIDR: write a network as in 10.42.0.0/16 or fd42::/56", c)
			continue
		}
		if m := prefix.Masked(); m.String() != c {
			p.add(key, "%q is not written as a network: did you mean %q?", c, m)
			continue
		}
		f := family(prefix.Addr())
		if other, twice := seen[f]; twice {
			p.add(key, "%s and %s are both %s: give at most one per family", other, c, f)
			continue
		}
		seen[f] = c
		out = append(out, prefix)
	}
	if len(*p) > before {
		return nil
	}
	return out
}

// validateCIDRs checks the pod and service networks against each other and their sizes.
func (s *Server) validateCIDRs(p *problems, pods, services []netip.Prefix) {
	if a, b := families(pods), families(services); a != b {
		p.add("serviceCIDR", "its families (%s) are not those of %s (%s): give both the same ones in the same order", b, label("clusterCIDR"), a)
		return
	}
	for i := range pods {
		if pods[i].Overlaps(services[i]) {
			p.add("serviceCIDR", "%s overlaps %s of %s: give pods and Services separate networks", services[i], pods[i], label("clusterCIDR"))
		}
	}
	for _, c := range services {
		if hostBits := c.Addr().BitLen() - c.Bits(); hostBits < 4 {
			p.add("serviceCIDR", "%s has only %d addresses and the cluster DNS takes the tenth: use /%d or larger", c, 1<<hostBits, c.Addr().BitLen()-4)
		}
	}
	for _, a := range s.ControllerManagerArgs {
		if strings.HasPrefix(a, "node-cidr-mask-size") {
			return // then the size of a node's range is not upstream's default
		}
	}
	for _, c := range pods {
		mask := 24 // upstream's defaults of --node-cidr-mask-size-ipv4 and -ipv6
		if c.Addr().Is6() {
			mask = 64
		}
		if c.Bits() > mask {
			p.add("clusterCIDR", "%s is too small, each node takes a /%d of it: use /%d or larger", c, mask, mask)
		}
		if mask-c.Bits() > 16 { // upstream's limit, k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset
			p.add("clusterCIDR", "%s is too large to be cut into a /%d for each node: use /%d or smaller", c, mask, mask-16)
		}
	}
}

// validateNodeIPs checks the addresses, and a server's also against its networks.
func (n *Node) validateNodeIPs(p *problems, pods, services []netip.Prefix) {
	before := len(*p)
	seen := validateNodeAddresses(p, "nodeIP", n.NodeIP, pods, services)
	if len(*p) == before && len(n.NodeIP) > 0 && len(pods) > 0 && !seen[family(pods[0].Addr())] {
		f := family(pods[0].Addr())
		p.add("nodeIP", "has no %s address, the family of the first network in %s: add one", f, label("clusterCIDR"))
	}
	validateNodeAddresses(p, "nodeExternalIP", n.NodeExternalIP, pods, services)
}

// validateNodeAddresses checks addresses of a node, and returns their families.
func validateNodeAddresses(p *problems, key string, addresses []string, pods, services []netip.Prefix) map[string]bool {
	called := map[string]string{"nodeIP": "node IP", "nodeExternalIP": "external node IP"}
	seen := map[string]bool{}
	for _, text := range addresses {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" || ip.Is4In6() {
			p.add(key, "%q is not an IP address", text)
			continue
		}
		// The kubelet refuses the same kinds.
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() {
			p.add(key, "%s cannot be a node's address: use one at which other hosts reach this one", ip)
			continue
		}
		f := family(ip)
		if seen[f] {
			p.add(key, "more than one %s address: give one per family", f)
		}
		seen[f] = true
		if len(pods) > 0 && !strings.Contains(families(pods), f) {
			p.add(key, "%s is %s but %s has no %s network: add one or leave the address out", ip, f, label("clusterCIDR"), f)
		}
		for _, c := range pods {
			if c.Contains(ip) {
				p.add("clusterCIDR", "%s contains the %s %s: choose another network", c, called[key], ip)
			}
		}
		for _, c := range services {
			if c.Contains(ip) {
				p.add("serviceCIDR", "%s contains the %s %s: choose another network", c, called[key], ip)
			}
		}
	}
	return seen
}

func family(ip netip.Addr) string {
	if ip.Unmap().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func families(cidrs []netip.Prefix) string {
	names := make([]string, 0, len(cidrs))
	for _, c := range cidrs {
		names = append(names, family(c.Addr()))
	}
	return strings.Join(names, ", ")
}

// APIAddresses returns the addresses at which the API is reached that are not the node's own: the advertised one, the
// one on which it is served if that is not all of them, and the virtual one.
func (s *Server) APIAddresses() []string {
	addresses := []string{s.AdvertiseAddress}
	if ip, err := netip.ParseAddr(s.BindAddress); err == nil && !ip.IsUnspecified() && ip.String() != s.AdvertiseAddress {
		addresses = append(addresses, ip.String())
	}
	if ip := s.VirtualAddress(); ip.IsValid() {
		addresses = append(addresses, ip.String())
	}
	return addresses
}

// APINames returns the addresses of APIAddresses, and the names and addresses of --tls-san.
func (s *Server) APINames() []string { return append(s.APIAddresses(), s.TLSSAN...) }

// URL returns the URL at which the host itself reaches the API.
func (s *Server) URL() string {
	host := "127.0.0.1"
	if ip, err := netip.ParseAddr(s.BindAddress); err == nil && !ip.IsUnspecified() {
		host = ip.String()
	}
	return fmt.Sprintf("https://%s", net.JoinHostPort(host, fmt.Sprint(s.HTTPSPort)))
}
