package dns

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"text/template"

	"kubelith.io/kubelith/base/names"
)

// answerTTL is how long, in seconds, clients may keep the address of a Service.
const answerTTL = 5

// corefile is the configuration of CoreDNS, in CoreDNS's own format, because its plugins can only be set up from it.
type corefile struct {
	Domain    string
	Bind      []string // addresses to listen on
	Allow     []string // networks that get answers in addition to this host; all others are refused
	Upstreams []string // resolvers for other names; empty: such names fail with SERVFAIL
	Custom    custom   // the administrator's additions
}

// corefileTemplate follows upstream's deployment, without what does not fit into a shared process: `loop` (it exits the
// process), `reload` (it takes signals), `health`, `ready` and `prometheus` (separate ports). Answers about the cluster
// are not cached: they come from memory anyway. Without the server, other names are still answered: the start waits no
// longer than startup_timeout for the cluster's data, and the cluster's names fail until it is known.
const corefileTemplate = `.:{{.Port}} {
	bind {{join .Bind}}
	errors {
		consolidate 30s ".*" warning
	}
	kubelith_sources {{join .Allow}}
	cache 30 {
		disable success {{.Domain}}
		disable denial {{.Domain}}
	}
	loadbalance
	kubelith_kubernetes {{.Domain}} in-addr.arpa ip6.arpa {
		pods insecure
		fallthrough in-addr.arpa ip6.arpa
		ttl {{.TTL}}
		startup_timeout 5s
	}
{{- if .Upstreams}}
	forward . {{join .Upstreams}} {
		max_concurrent 1000
		policy sequential
	}
{{- end}}
{{.Custom.Overrides -}}
}
{{range .Custom.Servers}}
{{join .Zones}} {
	bind {{join $.Bind}}
	kubelith_sources {{join $.Allow}}
{{.Body -}}
}
{{end}}`

// render returns the text for CoreDNS.
func (c corefile) render() ([]byte, error) {
	t, err := template.New("corefile").Funcs(template.FuncMap{
		"join": func(s []string) string { return strings.Join(s, " ") },
	}).Parse(corefileTemplate)
	if err != nil {
		return nil, fmt.Errorf("corefile: %w", err)
	}
	var b bytes.Buffer
	err = t.Execute(&b, struct {
		corefile
		Port, TTL int
	}{c.onPort(), names.DNSPort, answerTTL})
	if err != nil {
		return nil, fmt.Errorf("corefile: %w", err)
	}
	return b.Bytes(), nil
}

// onPort sets the port of our server block on the zones of custom servers.
func (c corefile) onPort() corefile {
	servers := c.Custom.Servers
	c.Custom.Servers = nil
	for _, s := range servers {
		var zones []string
		for _, zone := range s.Zones {
			zones = append(zones, fmt.Sprintf("%s:%d", zone, names.DNSPort))
		}
		c.Custom.Servers = append(c.Custom.Servers, customServer{zones, s.Body})
	}
	return c
}

// bindAddresses returns the node's addresses and the loopback address of each of their families, without duplicates.
func bindAddresses(ips []net.IP) []string {
	all := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, ip := range ips {
		if ip.To4() == nil && !contains(all, net.IPv6loopback) {
			all = append(all, net.IPv6loopback)
		}
	}
	for _, ip := range ips {
		if !contains(all, ip) {
			all = append(all, ip)
		}
	}
	out := make([]string, 0, len(all))
	for _, ip := range all {
		out = append(out, ip.String())
	}
	return out
}
