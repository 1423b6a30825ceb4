package node

import (
	"context"
	"time"

	"k8s.io/component-base/version"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/dns"
	"kubelith.io/kubelith/components/host"
)

// Preflight checks this host for what the configuration is going to run.
func Preflight(ctx context.Context, cfg *config.Server) []host.Result {
	containers := !cfg.Disabled("containerd")
	return host.Check(ctx, host.CheckOptions{
		DataDir:    cfg.DataDir,
		NodeName:   cfg.NodeName,
		Ports:      ports(cfg),
		Containers: containers,
		Proxy:      !cfg.Disabled("proxy"),
		NotBefore:  buildTime(),
	})
}

// ports are those that the components of cfg listen on with upstream's defaults.
func ports(cfg *config.Server) []host.Port {
	all := []host.Port{{Component: "apiserver", Network: "tcp", Address: cfg.BindAddress, Number: cfg.HTTPSPort}}
	if !cfg.Disabled("kubelet") {
		all = append(all,
			host.Port{Component: "kubelet", Network: "tcp", Number: 10250},
			host.Port{Component: "kubelet", Network: "tcp", Address: "127.0.0.1", Number: 10248})
	}
	if !cfg.Disabled("proxy") {
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

// buildTime is a moment that the clock must have passed: the date of the
// source that this executable was built from; zero when it is not known.
func buildTime() time.Time {
	t, err := time.Parse(time.RFC3339, version.Get().BuildDate)
	if err != nil {
		return time.Time{}
	}
	return t
}
