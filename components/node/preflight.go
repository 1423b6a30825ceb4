package node

import (
	"context"
	"strconv"
	"strings"
	"time"

	"k8s.io/component-base/version"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/dns"
	"kubelith.io/kubelith/components/host"
	"kubelith.io/kubelith/runtime/cgroups"
)

// Preflight checks this host for what the configuration is going to run.
func Preflight(ctx context.Context, cfg *config.Server) []host.Result {
	containers := !cfg.Disabled("containerd")
	return host.Check(ctx, host.CheckOptions{
		DataDir:      cfg.DataDir,
		NodeName:     cfg.NodeName,
		Ports:        ports(cfg),
		Containers:   containers,
		CgroupDriver: cgroups.DetectCgroupDriver(),
		Proxy:        !cfg.Disabled("proxy"),
		ServiceIPs:   cfg.ClusterDNS(),
		NotBefore:    buildTime(),
	})
}

// settle is how long a port may take to become free: that of a server which
// ends at this moment.
const settle = 3 * time.Second

// settledPreflight checks again while nothing but ports in use fail.
func settledPreflight(ctx context.Context, cfg *config.Server) []host.Result {
	for deadline := time.Now().Add(settle); ; {
		results := Preflight(ctx, cfg)
		failed, busy := 0, 0
		for _, r := range results {
			if r.Status == host.Fail {
				failed++
				if r.IsPort() {
					busy++
				}
			}
		}
		if busy == 0 || failed > busy || time.Now().After(deadline) || ctx.Err() != nil {
			return results
		}
		time.Sleep(settle / 10)
	}
}

// ports are those that the components of cfg listen on.
func ports(cfg *config.Server) []host.Port {
	all := []host.Port{{Component: "apiserver", Network: "tcp", Address: cfg.BindAddress, Number: cfg.HTTPSPort}}
	if !cfg.Disabled("kubelet") {
		all = append(all, host.Port{Component: "kubelet", Network: "tcp", Number: number(cfg.KubeletArgs, "port", 10250)})
		if healthz := number(cfg.KubeletArgs, "healthz-port", 10248); healthz != 0 {
			all = append(all, host.Port{Component: "kubelet", Network: "tcp", Address: "127.0.0.1", Number: healthz})
		}
	}
	if _, moved := value(cfg.ProxyArgs, "healthz-bind-address"); !moved && !cfg.Disabled("proxy") {
		all = append(all, host.Port{Component: "proxy", Network: "tcp", Number: 10256})
	}
	if !cfg.Disabled("dns") {
		for _, ip := range cfg.NodeIP {
			all = append(all,
				host.Port{Component: "dns", Network: "udp", Address: ip, Number: dns.DefaultPort},
				host.Port{Component: "dns", Network: "tcp", Address: ip, Number: dns.DefaultPort})
		}
	}
	return all
}

// value is that of an upstream argument; the last one counts.
func value(args []string, key string) (v string, given bool) {
	for _, kv := range args {
		if k, val, _ := strings.Cut(kv, "="); strings.TrimLeft(k, "-") == key {
			v, given = val, true
		}
	}
	return v, given
}

// number is an upstream argument's value, or the default when it is not given
// or no number, of which the component complains.
func number(args []string, key string, or int) int {
	v, _ := value(args, key)
	if n, err := strconv.Atoi(v); err == nil {
		return n
	}
	return or
}

// buildTime is a moment that the clock must have passed: the date of the
// source that this executable was built from; zero when it is not known.
func buildTime() time.Time {
	t, err := time.Parse(time.RFC3339, version.Get().BuildDate)
	if err != nil {
		return time.Time{}
	}
	return t
}
