package node

import (
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/components/cluster/scheduler"
	"kubelith.io/kubelith/components/controlplane/apiserver"
	"kubelith.io/kubelith/components/controlplane/carotation"
	"kubelith.io/kubelith/components/controlplane/certificates"
	"kubelith.io/kubelith/components/controlplane/election"
	"kubelith.io/kubelith/components/controlplane/encryption"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/controlplane/metrics"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/components/worker/upgrader"
	"kubelith.io/kubelith/plugins/host"
)

// plane is what the other scopes of a server need of its control plane.
type plane struct {
	cfg     *config.Server
	machine *machine
	log     *logrus.Logger

	clients *client.InProcess // of the components that each server runs
	leader  client.Identities // of the components of the leading server: they write during its term only, and not much at once
	plugins *host.Host
	api     *apiserver.Server

	serverNames func() []string // of this server and the others

	elsewhere []string // components that another server under test runs for this one; otherwise none
}

func (p *plane) logFor(component string) logrus.FieldLogger {
	return logging.Component(p.log, component)
}

// controlPlane adds the components that each server runs: etcd, the apiserver with the metrics API, the leader
// election, and the plugins.
func controlPlane(b *builder, cfg *config.Server, machine *machine, log *logrus.Logger) *plane {
	p := &plane{cfg: cfg, machine: machine, log: log}
	p.clients = client.New(cfg.URL(), p.logFor("client"))

	plugins, admin := serverPlugins(cfg, machine, p.clients, log)
	p.plugins = plugins
	b.add(plugins)
	b.add(admin)

	b.add(certificates.New(certificates.Options{
		Renew: func() ([]string, error) {
			changed, err := machine.certify(cfg, netip.Addr{})
			if err != nil {
				return nil, err
			}
			return changed, machine.pluginUsers.Renew()
		},
		Every: testedLife() / 20,
		Log:   p.logFor("certificates"),
	}))

	socket := cfg.EtcdSocket()
	shared := sharedEtcd()
	store, err := etcd.New(etcd.Options{
		DataDir: filepath.Join(cfg.DataDir, datadir.Etcd),
		Socket:  socket,
		Name:    cfg.NodeName,
		Args:    machine.args.etcd,
		Peer:    machine.ofSeveral(cfg),
		Removed: func() { noteRemoval(cfg) },
		Ending:  machine.ending,
		First:   beforeUpgrade(cfg, machine, socket, p.logFor("snapshots")),
		Metrics: legacyregistry.Registerer(),
		Zap:     logging.Zap(logging.Component(log, "etcd")),
	})
	b.add(store, err)
	p.serverNames = func() []string {
		all := servers.Names(store)
		if !slices.Contains(all, cfg.NodeName) { // etcd is another server's, under test, or does not run yet
			all = append(all, cfg.NodeName)
		}
		return all
	}
	var answers <-chan struct{}
	var slowSync func() time.Duration
	if endpoint := shared.socket; endpoint != "" && endpoint != socket {
		socket, p.elsewhere = endpoint, []string{"etcd"}
	} else if store != nil {
		answers, slowSync = store.Answers(), store.SlowSync
		p.clients.AwaitStorage(store.AwaitLeader)
	}

	b.add(snapshots(cfg, machine, socket, p.clients.NodeConfig(cfg.NodeName), p.logFor("snapshots")))

	dial := p.tunnels(b)
	var others *servers.Server      // in the handler below
	var rotation *encryption.Server // likewise
	var cas *carotation.Server      // likewise
	var metricsAPI *apiserver.Extension
	if !cfg.Disabled("metrics-server") {
		server := metrics.New(metrics.Options{
			Client: p.clients.Config(client.Metrics),
			PKI:    machine.pki,
			Dial:   dial.kubelet,
			Log:    p.logFor("metrics-server"),
		})
		metricsAPI = &apiserver.Extension{Scheme: metrics.Scheme(), Install: server.Install}
		b.add(server)
	}

	p.api, err = apiserver.New(apiserver.Options{
		NodeName:         cfg.NodeName,
		BindAddress:      cfg.BindAddress,
		Port:             cfg.HTTPSPort,
		AdvertiseAddress: cfg.AdvertiseAddress,
		ServiceCIDRs:     cfg.ServiceCIDR,
		ClusterDomain:    cfg.ClusterDomain,
		EtcdEndpoint:     etcd.Endpoint(socket),
		EtcdAnswers:      answers,
		SlowSync:         slowSync,
		EncryptionConfig: machine.encryptionConfig,
		PKI:              machine.pki,
		Args:             machine.args.apiserver,
		DialKubelet:      dial.kubelet,
		DialCluster:      dial.cluster,
		Client:           p.clients,
		Log:              p.logFor("apiserver"),
		Extend:           metricsAPI,
		Plugins:          plugins,
		SchedulerPolicy:  scheduler.PolicyConfigMap(machine.args.scheduler),
		Record:           machine.record,
		VirtualAddress:   func() netip.Addr { return machine.virtualAddress(cfg) },
		Handle: func(next http.Handler) http.Handler {
			return dial.handle(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				upgrader.Handler(cfg.DataDir, cas.Handler(rotation.Handler(others.Handler(next)))).ServeHTTP(w, r)
			}))
		},
	})
	b.add(p.api, err)
	if store != nil && p.api != nil {
		others, err = otherServers(p, store, socket)
		b.add(others, err)
		if others != nil {
			others.ReportSpace(machine.status.EtcdSpace)
		}
		rotation, err = rotationOfKeys(p, store, socket)
		b.add(rotation, err)
		cas, err = rotationOfCAs(p, store)
		b.add(cas, err)
	}

	alone := func() bool { return shared.socket == "" && store.Alone() }
	b.election = election.New(election.Options{
		Client:   p.clients.Config(client.Election),
		Identity: cfg.NodeName,
		Timing:   shared.timing,
		Alone:    alone,
		SlowSync: slowSync,
		Log:      p.logFor("election"),
	})
	b.add(b.election)
	p.leader = client.Paced(b.election.Fence(p.clients))
	if cfg.VIP != config.VIPNone {
		b.add(virtualAddress(p, alone, slowSync))
	}
	return p
}

// workerClient is workerOptions.client of the server's own node.
func (p *plane) workerClient(_, identity string) *rest.Config {
	if identity == asNode {
		return p.clients.NodeConfig(p.cfg.NodeName)
	}
	return p.clients.Config(identity)
}
