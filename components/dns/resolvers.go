package dns

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/miekg/dns"
)

const (
	// hostResolvConf is where a host keeps its resolvers.
	hostResolvConf = "/etc/resolv.conf"
	// resolvedConf is where systemd-resolved keeps the resolvers behind its stub.
	resolvedConf = "/run/systemd/resolve/resolv.conf"
	// maxUpstreams is what CoreDNS's forward plugin accepts.
	maxUpstreams = 15
)

// resolvers reads the resolvers that other names are forwarded to. A file with loopback resolvers only (a stub such as
// systemd-resolved) is replaced by systemd-resolved's own list where there is one; otherwise the stub is used,
// because this process runs on the host. The cluster's own addresses are left out: that would be a loop.
func resolvers(file string, clusterDNS []net.IP) ([]string, error) {
	return resolversFrom(file, resolvedConf, clusterDNS)
}

func resolversFrom(file, fallback string, clusterDNS []net.IP) ([]string, error) {
	servers, err := readResolvers(file, clusterDNS)
	if err != nil {
		return nil, err
	}
	if onlyLoopback(servers) && file != fallback {
		if real, err := readResolvers(fallback, clusterDNS); err == nil && len(real) > 0 {
			return real, nil
		}
	}
	return servers, nil
}

// readResolvers returns the nameservers of one resolv.conf.
func readResolvers(file string, exclude []net.IP) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	conf, err := dns.ClientConfigFromReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var out []string
	seen := map[string]bool{}
	for _, server := range conf.Servers {
		ip := net.ParseIP(withoutZone(server))
		if ip == nil || contains(exclude, ip) || seen[server] || len(out) == maxUpstreams {
			continue
		}
		seen[server] = true
		out = append(out, server)
	}
	return out, nil
}

func onlyLoopback(servers []string) bool {
	for _, s := range servers {
		if ip := net.ParseIP(withoutZone(s)); ip == nil || !ip.IsLoopback() {
			return false
		}
	}
	return len(servers) > 0
}

// withoutZone cuts the interface off a link-local address (fe80::1%eth0).
func withoutZone(server string) string {
	ip, _, _ := strings.Cut(server, "%")
	return ip
}
