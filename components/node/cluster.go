package node

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/cluster/approver"
	"kubelith.io/kubelith/components/cluster/controllermanager"
	"kubelith.io/kubelith/components/cluster/dnspublisher"
	"kubelith.io/kubelith/components/cluster/manifests"
	"kubelith.io/kubelith/components/cluster/metricspublisher"
	"kubelith.io/kubelith/components/cluster/scheduler"
	"kubelith.io/kubelith/components/cluster/servicelb"
	"kubelith.io/kubelith/components/cluster/storagecontrollers"
	"kubelith.io/kubelith/components/cluster/token"
	"kubelith.io/kubelith/components/worker/kubelet"
	"kubelith.io/kubelith/components/worker/network"
	embedded "kubelith.io/kubelith/manifests"
)

// cluster adds the components of which a cluster has one, on the leading server. They take the names and addresses of
// machines from the API, and work with an empty local disk. Of this server they have the keys, which all servers share,
// the address that it publishes for joins, and the files of its manifests and join token.
func cluster(b *builder, p *plane) {
	cfg := p.cfg
	controllers, err := controllermanager.New(controllermanager.Options{
		ClusterCIDRs: cfg.ClusterCIDR,
		ServiceCIDRs: cfg.ServiceCIDR,
		PKI:          p.machine.pki,
		Args:         p.machine.args.controllerManager,
		Client:       p.leader,
		Informers:    p.api.Informers,
		ClaimCSI: func() error {
			if cfg.Disabled("kubelet") {
				return nil
			}
			return kubelet.ClaimCSI(p.clients.NodeConfig(cfg.NodeName), cfg.NodeName)
		},
		Log: p.logFor("controller-manager"),
	})
	b.elect(controllers, err)

	b.elect(scheduler.New(scheduler.Options{
		Args:      p.machine.args.scheduler,
		Plugins:   p.plugins,
		Client:    p.leader,
		Informers: p.api.Informers,
		Log:       p.logFor("scheduler"),
		Record:    p.machine.record,
	}))

	settings, err := json.Marshal(cfg.ClusterInfo(version.Get().GitVersion, p.machine.release))
	b.check(err)
	tokens, err := token.New(token.Options{
		File:     tokenFile(cfg),
		Reusable: cfg.JoinToken == config.JoinTokenDaily,
		CA:       func() ([]byte, error) { return pki.Published(tlsDir(cfg)) },
		CADir:    tlsDir(cfg),
		Server:   joinURL(cfg),
		Cluster: token.Document{
			Namespace: metav1.NamespaceSystem, Name: names.ClusterInfo, Key: names.ClusterInfoKey, Value: string(settings),
		},
		Client:    p.leader.Config(client.Token),
		Informers: p.api.Informers,
		Log:       p.logFor("token"),
	})
	b.elect(tokens, err)

	b.elect(approver.New(approver.Options{
		Client:          p.leader.Config(client.Approver),
		Informers:       p.api.Informers,
		Spend:           tokens.Spend,
		ServerNames:     p.serverNames,
		ServerCert:      p.machine.pki.APIServer.Cert,
		Networks:        append(slices.Clone(cfg.ClusterCIDR), cfg.ServiceCIDR...),
		ClusterDomain:   cfg.ClusterDomain,
		CertificateLife: signedFor(controllers),
		Log:             p.logFor("approver"),
	}))

	b.elect(storagecontrollers.New(storagecontrollers.Options{
		Plugins:        p.plugins,
		Client:         p.leader.Config(client.Storage),
		Informers:      p.api.Informers,
		NodeName:       cfg.NodeName,
		KubeletRootDir: cfg.KubeletRootDir,
		Declared:       elsewhere(cfg.Disabled),
		Log:            p.logFor("storage-controllers"),
	}))

	b.with("dns").elect(dnspublisher.New(dnspublisher.Options{
		Client:     p.leader.Config(client.DNS),
		Informers:  p.api.Informers,
		ClusterDNS: cfg.ClusterDNS(),
		Log:        p.logFor("dns-publisher"),
	}))

	b.elect(manifests.New(manifests.Options{
		Client:   p.leader.Config(client.Manifests),
		Dir:      filepath.Join(cfg.DataDir, datadir.Manifests),
		Embedded: embedded.Cluster(),
		Log:      p.logFor("manifests"),
	}))

	b.elect(serviceLB(cfg, servicelb.Options{
		Client:    p.leader.Config(client.ServiceLB),
		Informers: p.api.Informers,
		KubeletCA: p.machine.pki.KubeletTrust,
		Log:       p.logFor("servicelb"),
	}))

	b.elect(metricsPublisher(cfg, metricspublisher.Options{
		Client: p.leader.Config(client.Metrics),
		Log:    p.logFor("metrics-publisher"),
	}))
}

// signedFor returns how long certificates signed by the controller-manager last; zero without a controller-manager,
// which is reported elsewhere.
func signedFor(controllers *controllermanager.Server) time.Duration {
	if controllers == nil {
		return 0
	}
	return controllers.Upstream().ComponentConfig.CSRSigningController.ClusterSigningDuration.Duration
}

// serviceLB returns the Service load balancer or, when it is disabled, the component that removes its addresses.
func serviceLB(cfg *config.Server, o servicelb.Options) lifecycle.Component {
	o.NodePorts, o.ServerPorts = ownPorts(cfg)
	o.Addresses = nodeAddresses(cfg)
	if cfg.Disabled("servicelb") {
		return servicelb.NewCleaner(o)
	}
	return servicelb.New(o)
}

// ownPorts returns the ports on which Kubelith listens on each node, and on servers in addition, whatever this one has
// switched off. The kubelet's is in its Node.
func ownPorts(cfg *config.Server) (node, server []hostport.Port) {
	node = []hostport.Port{
		{Protocol: corev1.ProtocolTCP, Number: names.ProxyHealthPort},
		{Protocol: corev1.ProtocolTCP, Number: names.DNSPort},
		{Protocol: corev1.ProtocolUDP, Number: names.DNSPort},
		{Protocol: corev1.ProtocolUDP, Number: names.VXLANPort},
	}
	if network.Backend(cfg.Network) == network.WireGuard {
		node = append(node, hostport.Port{Protocol: corev1.ProtocolUDP, Number: names.WireGuardPort})
	}
	return node, []hostport.Port{
		{Protocol: corev1.ProtocolTCP, Number: int32(cfg.HTTPSPort)},
		{Protocol: corev1.ProtocolTCP, Number: names.PeerPort}, // also while there are no other servers, which could not join
	}
}

// metricsPublisher creates the APIService of the metrics API or, when that is disabled, removes it.
func metricsPublisher(cfg *config.Server, o metricspublisher.Options) lifecycle.Component {
	if cfg.Disabled("metrics-server") {
		return metricspublisher.NewCleaner(o)
	}
	return metricspublisher.New(o)
}

// nodeAddresses returns the rules that addresses of nodes are checked against.
func nodeAddresses(cfg *config.Server) nodeaddr.Rules {
	rules := nodeaddr.Parse(slices.Concat(cfg.ClusterCIDR, cfg.ServiceCIDR), cfg.APINames())
	rules.APIPort = uint16(cfg.HTTPSPort)
	return rules
}
