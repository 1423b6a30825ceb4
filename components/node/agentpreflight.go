package node

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/components/worker/join"
	"kubelith.io/kubelith/host/preflight"
)

// PreflightAgent checks the upstream arguments, this host and, with a token or after a join, the connection to the
// cluster. It writes nothing.
func PreflightAgent(ctx context.Context, cfg *config.Agent) []preflight.Result {
	const check = "cluster"
	found, err := find(ctx, cfg, silent())
	if err != nil {
		results := preflight.Check(ctx, agentCheckOptions(cfg, &config.ClusterInfo{}, nil))
		if jointoken.IsClock(err) { // being past the build time proves nothing now
			results = slices.DeleteFunc(results, func(r preflight.Result) bool { return r.Name == "clock" && r.Status == preflight.OK })
		}
		return append([]preflight.Result{{Name: check, Status: preflight.Fail, Message: err.Error()}},
			append(results, directoryResult(&cfg.Node))...)
	}
	m, planned, err := planAgent(cfg, found)
	results := append([]preflight.Result{{Name: check, Status: preflight.OK, Message: "found at " + cfg.Server}},
		argumentResults(err)...)
	cluster := &config.ClusterInfo{}
	if m != nil {
		cluster = m.cluster
		results = append(results, m.checks...)
	}
	return append(append(results, preflight.Check(ctx, agentCheckOptions(cfg, cluster, planned))...), directoryResult(&cfg.Node))
}

// agentCheckOptions returns what the components of an agent need of this host.
func agentCheckOptions(cfg *config.Agent, cluster *config.ClusterInfo, components []lifecycle.Component) preflight.Options {
	opts := nodeCheckOptions(&cfg.Node, cluster, join.PKI(cfg.DataDir))
	opts.Ports = ports(components)
	return opts
}

// wayToServer warns when the node does not reach the server from the address that was found for it: the other nodes may
// not reach it there. Machines behind one kind of NAT, such as virtual machines, all have the same address there.
func wayToServer(cfg *config.Agent) []preflight.Result {
	server, err := url.Parse(cfg.Server)
	if err != nil {
		return nil
	}
	way, err := net.Dial("udp", server.Host) // sends nothing: it looks up the route
	if err != nil {
		return nil
	}
	defer way.Close()
	from := way.LocalAddr().(*net.UDPAddr).IP
	return otherAddress(from, cfg.NodeIPs())
}

// otherAddress returns the warning for a node with these addresses that reaches its server from another one. It returns
// nothing when from is one of them, or of a family that the node does not have.
func otherAddress(from net.IP, node []net.IP) []preflight.Result {
	var same []string
	for _, ip := range node {
		if ip.Equal(from) {
			return nil
		}
		if (ip.To4() == nil) == (from.To4() == nil) {
			same = append(same, ip.String())
		}
	}
	if len(same) == 0 || from.IsLoopback() {
		return nil
	}
	return []preflight.Result{{Name: "node ip", Status: preflight.Warn,
		Message: fmt.Sprintf("this machine reaches the server from %s, not from %s, the address of its default route",
			from, strings.Join(same, ", ")),
		Fix: fmt.Sprintf("set --node-ip %s if the other nodes are on that network", from)}}
}
