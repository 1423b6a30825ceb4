package node

import (
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/logging"
	basetunnel "kubelith.io/kubelith/base/tunnel"
	"kubelith.io/kubelith/components/controlplane/tunnel"
	"kubelith.io/kubelith/components/worker/join"
	agenttunnel "kubelith.io/kubelith/components/worker/tunnel"
)

// dialers are how the API server connects to nodes.
type dialers struct {
	kubelet tunnel.Dial // also metrics-server's
	cluster tunnel.Dial // Services, pods and other ports of nodes
	// handle adds the requests of agents for tunnels.
	handle func(http.Handler) http.Handler
}

// tunnels adds the component that has the tunnels of agents.
func (p *plane) tunnels(b *builder) dialers {
	rules := nodeAddresses(p.cfg)
	s := tunnel.New(tunnel.Options{
		NodeName:     p.cfg.NodeName,
		Addresses:    rules,
		ServiceCIDRs: p.cfg.ServiceCIDR,
		ClusterCIDRs: p.cfg.ClusterCIDR,
		KubeletCA:    p.machine.pki.KubeletTrust,
		Informers:    func() informers.SharedInformerFactory { return p.api.Informers() }, // it is created later
		Log:          p.logFor("tunnel"),
	})
	b.add(s)
	cluster := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return dialers{kubelet: s.Kubelet(rules.Dialer().DialContext), cluster: s.Cluster(cluster.DialContext), handle: s.Handler}
}

// tunnel adds the component with which servers that cannot connect to an agent reach it.
func (m *agent) tunnel(b *builder, cfg *config.Agent, c *join.Connection, log *logrus.Logger) {
	if cfg.Tunnel == basetunnel.Never {
		return
	}
	b.add(agenttunnel.New(agenttunnel.Options{
		Mode:     cfg.Tunnel,
		Servers:  c.Servers,
		Dial:     c.Dial,
		Client:   c.Config("tunnel"),
		NodeName: cfg.NodeName,
		NodeIPs:  cfg.NodeIPs(),
		Log:      logging.Component(log, "tunnel"),
	}))
}
