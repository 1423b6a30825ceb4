package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/components/client"
	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/dns"
	"kubelith.io/kubelith/components/host"
	"kubelith.io/kubelith/components/join"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/components/profile"
	componentstatus "kubelith.io/kubelith/components/status"
)

// ServeAgent runs an agent until ctx is cancelled or a component fails. release is the version of Kubelith, noted in the
// data directory.
func ServeAgent(ctx context.Context, cfg *config.Agent, release string, out Output) error {
	p, err := newProcess(ctx, &cfg.Node, out)
	if err != nil {
		return err
	}
	defer p.out.Close()
	prepared := p.awaitStep(ctx, "preparation (the server is found, programs and keys are written)")
	defer prepared()
	m, err := prepareAgent(ctx, cfg, release, logging.Component(p.log, "join"))
	if err != nil {
		return err
	}
	defer m.Close()
	components, err := m.build(cfg, p.log)
	if err != nil {
		return err
	}
	goal := goal{role: config.RoleAgent, needed: withoutServer(components), reached: "the node " + cfg.NodeName + " of " + cfg.Server}
	if err := p.breakLoops(&cfg.Node); err != nil {
		return err
	}
	p.follow(&cfg.Node, m.cluster.ClusterCIDR)
	prepared()
	return p.run(ctx, m.machine, components, goal, func(context.Context) {})
}

// withoutServer are the components that get ready while the server is away. With them an agent has started: its pods run,
// and a service manager must not take it for one that hangs.
func withoutServer(components []lifecycle.Component) []string {
	return slices.DeleteFunc(names(components), func(name string) bool {
		return !slices.Contains([]string{"connection", "containerd", "kubelet"}, name)
	})
}

// agent is what an agent found or made before any component.
type agent struct {
	*machine
	cluster    *config.ClusterInfo
	connection *join.Connection // nil in a plan
}

// prepareAgent joins the cluster, at the first start, and does everything else that has to be right before a component is
// built. Nothing is written before the cluster is found. The join is the last step: a start that is refused takes back what
// it has made on this machine, and the server has heard of none.
func prepareAgent(ctx context.Context, cfg *config.Agent, release string, log logrus.FieldLogger) (_ *agent, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("kubelith agent needs root: run it with sudo")
	}
	found, err := find(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	m, planned, err := planAgent(cfg, found)
	if err != nil {
		return nil, err
	}
	attempt := begin(&cfg.Node)
	defer func() {
		if err != nil {
			attempt.takeBack()
		}
	}()
	if err := m.settle(ctx, attempt, &cfg.Node, release, agentCheckOptions(cfg, m.cluster, planned)); err != nil {
		return nil, err
	}
	if m.connection, err = found.Join(ctx, cfg.NodeIP); err != nil {
		return nil, err
	}
	m.connection.OnChange(restartFor)
	return m, nil
}

// find finds the cluster, and with it the node's addresses when they were not given.
func find(ctx context.Context, cfg *config.Agent, log logrus.FieldLogger) (*join.Cluster, error) {
	token := cfg.Token
	if cfg.TokenFile != "" {
		text, err := os.ReadFile(cfg.TokenFile)
		switch {
		case err == nil:
			token = string(bytes.TrimSpace(text))
		case !errors.Is(err, fs.ErrNotExist) || !join.IsAgent(cfg.DataDir): // who has joined needs none
			return nil, fmt.Errorf("read the token: %w: correct --token-file", err)
		}
	}
	return join.Find(ctx, join.Options{
		DataDir:  cfg.DataDir,
		Server:   cfg.Server,
		Token:    token,
		NodeName: cfg.NodeName,
		Version:  version.Get().GitVersion,
		Settings: join.ConfigMapKey{Namespace: config.ClusterInfoNamespace, Name: config.ClusterInfoName, Key: config.ClusterInfoKey},
		Log:      log,
	})
}

// planAgent checks the settings of the agent against the cluster's, and builds the components once, which checks their
// arguments and tells their ports.
func planAgent(cfg *config.Agent, found *join.Cluster) (*agent, []lifecycle.Component, error) {
	cluster, err := config.ParseClusterInfo(found.Settings())
	if err != nil {
		return nil, nil, err
	}
	detected := len(cfg.NodeIP) == 0
	if detected {
		if cfg.NodeIP, err = config.DetectNodeIPs(cluster.ClusterCIDR); err != nil {
			return nil, nil, err
		}
		cfg.NodeIPDetected = true
	}
	if err := cfg.ValidateIn(cluster); err != nil {
		return nil, nil, err
	}
	if err := setNoProxy(&cfg.Node, cluster, cfg.Server); err != nil {
		return nil, nil, err
	}
	rest, err := setGates(profile.With(profile.Of(cluster.Profile, "").Kubelet, cfg.KubeletArgs), cfg.ProxyArgs)
	if err != nil {
		return nil, nil, err
	}
	m := &agent{cluster: cluster, machine: &machine{resolvConf: dns.HostResolvConf(), status: componentstatus.NewObserver(), args: upstreamArgs{kubelet: rest[0], proxy: rest[1]}}}
	if detected {
		m.checks = wayToServer(cfg)
	}
	planned, err := m.build(cfg, silent())
	return m, planned, err
}

// wayToServer warns when the address that was found for this node is not the one from which it reaches the server: the other nodes may
// not reach it there. Machines behind one kind of NAT, such as virtual machines, all have the same address there.
func wayToServer(cfg *config.Agent) []host.Result {
	server, err := url.Parse(cfg.Server)
	if err != nil {
		return nil
	}
	way, err := net.Dial("udp", server.Host) // sends nothing: it asks for the route
	if err != nil {
		return nil
	}
	defer way.Close()
	from := way.LocalAddr().(*net.UDPAddr).IP
	return otherAddress(from, cfg.NodeIPs())
}

// otherAddress is the warning for a node with these addresses that reaches its server from one; nothing when that is among them, or of
// a family that the node has not.
func otherAddress(from net.IP, node []net.IP) []host.Result {
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
	return []host.Result{{Name: "node ip", Status: host.Warn,
		Message: fmt.Sprintf("%s, of the default route, is not the address from which this machine reaches the server: %s", strings.Join(same, ", "), from),
		Fix:     fmt.Sprintf("give --node-ip %s if the other nodes are there", from)}}
}

// build builds all components of an agent. It touches nothing on the host.
func (m *agent) build(cfg *config.Agent, log *logrus.Logger) ([]lifecycle.Component, error) {
	b := builder{api: "connection"}
	w := worker{cfg: &cfg.Node, role: config.RoleAgent, cluster: m.cluster, clientCA: join.CACert(cfg.DataDir)}
	w.node, w.hostPorts, w.status, w.proxy, w.dns, w.storage = join.PlannedConfig(), join.PlannedConfig(), join.PlannedConfig(), join.PlannedConfig(), join.PlannedConfig(), join.PlannedConfig()
	if m.connection != nil {
		b.add(m.connection, nil)
		w.node, w.proxy, w.dns = m.connection.Config("kubelet"), m.connection.Config("proxy"), m.connection.Config("dns")
		w.hostPorts = m.connection.Config("host-ports")
		w.status = m.connection.Config("status")
		w.storage = storageOf(cfg.NodeName, m.connection.Config("storage"))
		w.disconnect = m.connection.Disconnect
		w.machine = join.Machine(cfg.DataDir)
	}
	told := w.node
	if m.connection != nil {
		told = m.connection.Config("plugins")
	}
	extensions, operation := agentPlugins(cfg, m.machine, told, log)
	b.add(extensions, nil)
	b.add(operation, nil)
	w.plugins = extensions
	w.add(&b, m.machine, log)
	// The kubelet of a server waits for its controller-manager.
	return b.enabled(append(slices.Clone(cfg.Disable), "controller-manager"))
}

// agentCheckOptions say what the components of an agent need of this host.
func agentCheckOptions(cfg *config.Agent, cluster *config.ClusterInfo, components []lifecycle.Component) host.CheckOptions {
	opts := nodeCheckOptions(&cfg.Node, cluster, join.PKI(cfg.DataDir))
	opts.Ports = nodePorts(components)
	return opts
}

// restartFor names what an agent takes from its cluster at its start only.
func restartFor(old, current []byte) string {
	before, err := config.ParseClusterInfo(old)
	if err != nil {
		return ""
	}
	after, err := config.ParseClusterInfo(current)
	if err != nil {
		return ""
	}
	for _, c := range []struct {
		what     string
		old, new []string
	}{
		{"the network", []string{before.Network}, []string{after.Network}},
		{"the pods' networks", before.ClusterCIDR, after.ClusterCIDR},
		{"the Services' networks", before.ServiceCIDR, after.ServiceCIDR},
		{"the DNS domain", []string{before.ClusterDomain}, []string{after.ClusterDomain}},
		{"the DNS address", before.ClusterDNS, after.ClusterDNS},
		{"the hardening profile", []string{before.Profile}, []string{after.Profile}},
	} {
		if !slices.Equal(c.old, c.new) {
			return fmt.Sprintf("%s of the cluster changed from %v to %v", c.what, c.old, c.new)
		}
	}
	return ""
}

// PreflightAgent checks the upstream arguments, this host and, with a token or after a join, the way to the cluster. It
// writes nothing.
func PreflightAgent(ctx context.Context, cfg *config.Agent) []host.Result {
	const check = "cluster"
	found, err := find(ctx, cfg, silent())
	if err != nil {
		results := host.Check(ctx, agentCheckOptions(cfg, &config.ClusterInfo{}, nil))
		if join.IsClock(err) { // that it is not before this program was built says nothing now
			results = slices.DeleteFunc(results, func(r host.Result) bool { return r.Name == "clock" && r.Status == host.OK })
		}
		return append([]host.Result{{Name: check, Status: host.Fail, Message: err.Error()}}, append(results, directoryResult(&cfg.Node))...)
	}
	m, planned, err := planAgent(cfg, found)
	results := append([]host.Result{{Name: check, Status: host.OK, Message: "found at " + cfg.Server}}, argumentResults(err)...)
	cluster := &config.ClusterInfo{}
	if m != nil {
		cluster = m.cluster
		results = append(results, m.checks...)
	}
	return append(append(results, host.Check(ctx, agentCheckOptions(cfg, cluster, planned))...), directoryResult(&cfg.Node))
}

// storageOf is the node's way to the API as the storage controllers on it, which the apiserver lets this node do.
func storageOf(node string, asNode *rest.Config) *rest.Config {
	c := rest.CopyConfig(asNode)
	c.Impersonate = rest.ImpersonationConfig{UserName: client.StorageNodePrefix + node, Groups: []string{client.StorageNodes}}
	return c
}
