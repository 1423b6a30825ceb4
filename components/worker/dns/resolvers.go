package dns

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/miekg/dns"
)

const (
	// hostResolvConf is where a host keeps its resolvers.
	hostResolvConf = "/etc/resolv.conf"
	// resolvedConf is where systemd-resolved keeps the resolvers behind its stub.
	resolvedConf = "/run/systemd/resolve/resolv.conf"
	// resolvedStub is the name of the target of /etc/resolv.conf where systemd-resolved's stub is the host's resolver.
	resolvedStub = "stub-resolv.conf"
	// maxUpstreams is the limit of CoreDNS's forward plugin.
	maxUpstreams = 15
)

// HostResolvConf is the file with this host's real resolvers, for pods that use the host's and for CoreDNS's
// forwarding. A stub on loopback does not work in a pod: if /etc/resolv.conf lists nothing else, systemd-resolved's own
// list is used if it has any.
func HostResolvConf() string { return chooseResolvConf(hostResolvConf, resolvedConf) }

func chooseResolvConf(file, behindStub string) string {
	// At boot the link may exist before systemd-resolved has created its target.
	if to, err := os.Readlink(file); err == nil && filepath.Base(to) == resolvedStub {
		return behindStub
	}
	if stub, err := resolvers(file, nil); err == nil && onlyLoopback(stub) {
		if real, err := resolvers(behindStub, nil); err == nil && len(real) > 0 && !onlyLoopback(real) {
			return behindStub
		}
	}
	return file
}

// resolvers returns the nameservers of a resolv.conf. The cluster's own addresses are left out: that would be a loop.
func resolvers(file string, clusterDNS []net.IP) ([]string, error) {
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
		if ip == nil || contains(clusterDNS, ip) || seen[server] || len(out) == maxUpstreams {
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

// withoutZone removes the interface from a link-local address (fe80::1%eth0).
func withoutZone(server string) string {
	ip, _, _ := strings.Cut(server, "%")
	return ip
}
