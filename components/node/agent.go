package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/profile"
	"kubelith.io/kubelith/components/node/noproxy"
	"kubelith.io/kubelith/components/node/progress"
	"kubelith.io/kubelith/components/worker/catrust"
	"kubelith.io/kubelith/components/worker/dns"
	"kubelith.io/kubelith/components/worker/join"
	componentstatus "kubelith.io/kubelith/components/worker/status"
)

// ServeAgent runs an agent until ctx is cancelled or a component fails. release is the version of Kubelith, noted in
// the data directory.
func ServeAgent(ctx context.Context, cfg *config.Agent, release string, out Output) error {
	p, err := newProcess(ctx, &cfg.Node, out)
	if err != nil {
		return err
	}
	defer p.out.Close()
	prepared := p.awaitStep(ctx, "preparation (finding the server, writing programs and keys)")
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
	goal := progress.Goal{Role: names.RoleAgent, Needed: withoutServer(components),
		Reached: "the node " + cfg.NodeName + " of " + cfg.Server}
	if err := p.breakLoops(&cfg.Node); err != nil {
		return err
	}
	p.follow(&cfg.Node, m.cluster.ClusterCIDR)
	if err := exportCertificates(&cfg.Node); err != nil {
		return err
	}
	prepared()
	return p.run(ctx, m.machine, components, goal)
}

// withoutServer returns the components that become ready while the server is away. Once they are ready, the agent has
// started: its pods run, and a service manager must not think that it hangs.
func withoutServer(components []lifecycle.Component) []string {
	return only(components, "connection", "containerd", "kubelet")
}

// agent is what an agent found or created before any component.
type agent struct {
	*machine
	cluster    *config.ClusterInfo
	connection *join.Connection // nil in a plan
}

// prepareAgent joins the cluster at the first start, and does everything else that must be done before a component is
// built. It writes nothing before it has found the cluster. The join is the last step: a refused start removes what it
// created on this machine, and leaves nothing on the server.
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
	m.record = newRecord(&cfg.Node)
	if m.connection, err = found.Join(ctx, cfg.NodeIP); err != nil {
		return nil, err
	}
	m.connection.OnChange(restartFor)
	return m, nil
}

// find finds the cluster, and the node's addresses when they were not configured.
func find(ctx context.Context, cfg *config.Agent, log logrus.FieldLogger) (*join.Cluster, error) {
	token, err := readToken(cfg.Token, cfg.TokenFile)
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || !join.IsAgent(cfg.DataDir)) { // a node that has joined needs none
		return nil, err
	}
	return join.Find(ctx, join.Options{
		DataDir:  cfg.DataDir,
		Server:   cfg.Server,
		Token:    token,
		NodeName: cfg.NodeName,
		Version:  version.Get().GitVersion,
		Settings: join.ConfigMapKey{Namespace: metav1.NamespaceSystem, Name: names.ClusterInfo, Key: names.ClusterInfoKey},
		Log:      log,
	})
}

// readToken returns the token, or the content of the file.
func readToken(token, file string) (string, error) {
	if file == "" {
		return token, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the token: %w: correct --token-file", err)
	}
	return string(bytes.TrimSpace(text)), nil
}

// planAgent checks the settings of the agent against the cluster's, and builds the components once to check their
// arguments and find their ports.
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
	if err := noproxy.Set(&cfg.Node, cluster, cfg.Server); err != nil {
		return nil, nil, err
	}
	rest, err := setGates(profile.With(profile.Of(cluster.Profile, "").Kubelet, cfg.KubeletArgs), cfg.ProxyArgs)
	if err != nil {
		return nil, nil, err
	}
	m := &agent{cluster: cluster, machine: &machine{
		resolvConf: dns.HostResolvConf(),
		status:     componentstatus.NewObserver(),
		ending:     make(chan struct{}),
		args:       upstreamArgs{kubelet: rest[0], proxy: rest[1]},
	}}
	if detected {
		m.checks = wayToServer(cfg)
	}
	planned, err := m.build(cfg, silent())
	return m, planned, err
}

// build builds all components of an agent. It touches nothing on the host.
func (m *agent) build(cfg *config.Agent, log *logrus.Logger) ([]lifecycle.Component, error) {
	var b builder
	w := workerOptions{
		cfg:      &cfg.Node,
		machine:  m.machine,
		log:      log,
		role:     names.RoleAgent,
		cluster:  m.cluster,
		client:   func(string, string) *rest.Config { return join.PlannedConfig() },
		clientCA: join.CACert(cfg.DataDir),
	}
	if c := m.connection; c != nil {
		b.add(c)
		w.machineID, w.disconnect = join.Machine(cfg.DataDir), c.Disconnect
		w.client = func(component, identity string) *rest.Config {
			if identity == client.Storage {
				return storageOf(cfg.NodeName, c.Config(component))
			}
			return c.Config(component)
		}
	}
	plugins, admin := agentPlugins(cfg, m.machine, w.client("plugins", asNode), log)
	b.add(plugins)
	b.add(admin)
	w.plugins = plugins
	node := worker(&b, w)
	if m.connection != nil {
		m.tunnel(&b, cfg, m.connection, log)
		b.add(catrust.New(catrust.Options{
			NodeName:   cfg.NodeName,
			Connection: m.connection,
			Kubelet:    node,
			Client:     m.connection.Config("ca-trust"),
			Log:        logging.Component(log, "ca-trust"),
		}))
	}
	return b.enabled(cfg.Disable)
}

// restartFor names the settings that an agent reads from its cluster only when it starts.
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

// storageOf returns the client configuration of the storage controllers on this node. The apiserver lets the node
// impersonate them.
func storageOf(node string, asNode *rest.Config) *rest.Config {
	c := rest.CopyConfig(asNode)
	c.Impersonate = rest.ImpersonationConfig{UserName: client.StorageNodePrefix + node, Groups: []string{client.StorageNodes}}
	return c
}
