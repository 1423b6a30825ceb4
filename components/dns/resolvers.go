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
	// resolvedStub is the name of what /etc/resolv.conf leads to where systemd-resolved's stub is the host's resolver.
	resolvedStub = "stub-resolv.conf"
	// maxUpstreams is what CoreDNS's forward plugin accepts.
	maxUpstreams = 15
)

// HostResolvConf is the file with this host's real resolvers, for the pods that see the host's and for what CoreDNS
// forwards. A stub on loopback is of no use in a pod: where /etc/resolv.conf lists nothing else, systemd-resolved's own
// list is taken if it has any.
func HostResolvConf() string { return chooseResolvConf(hostResolvConf, resolvedConf) }

func chooseResolvConf(file, behindStub string) string {
	// At a boot the link may be there before systemd-resolved is, and what it leads to is not.
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

// withoutZone cuts the interface off a link-local address (fe80::1%eth0).
func withoutZone(server string) string {
	ip, _, _ := strings.Cut(server, "%")
	return ip
}
