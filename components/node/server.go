package node

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/components/apiserver"
	"kubelith.io/kubelith/components/client"
	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/controllermanager"
	"kubelith.io/kubelith/components/dns"
	"kubelith.io/kubelith/components/election"
	"kubelith.io/kubelith/components/etcd"
	"kubelith.io/kubelith/components/kubelet"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/components/manifests"
	"kubelith.io/kubelith/components/metrics"
	"kubelith.io/kubelith/components/network"
	"kubelith.io/kubelith/components/pki"
	"kubelith.io/kubelith/components/proxy"
	"kubelith.io/kubelith/components/scheduler"
	"kubelith.io/kubelith/components/servicelb"
	componentstatus "kubelith.io/kubelith/components/status"
	embedded "kubelith.io/kubelith/manifests"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/storage"
	"kubelith.io/kubelith/runtime/cgroups"
	"kubelith.io/kubelith/runtime/cni"
	"kubelith.io/kubelith/runtime/containerd"
	"kubelith.io/kubelith/runtime/images"
)

// Serve runs a server until ctx is cancelled or a component fails. release is the version of Kubelith, noted in the
// data directory.
func Serve(ctx context.Context, cfg *config.Server, release string, out Output) error {
	p, err := newProcess(ctx, &cfg.Node, out)
	if err != nil {
		return err
	}
	defer p.out.Close()
	if err := setNoProxy(&cfg.Node, cfg.ClusterInfo("", ""), cfg.URL()); err != nil {
		return err
	}
	prepared := p.awaitStep(ctx, "preparation (programs, keys and certificates are written)")
	defer prepared()
	machine, err := prepare(ctx, cfg, release)
	if err != nil {
		return err
	}
	defer machine.Close()

	components, err := server(cfg, machine, p.log)
	if err != nil {
		return err
	}
	goal := goal{role: config.RoleServer, needed: essential(components), reached: "kubeconfig: " + cfg.WriteKubeconfig,
		next: func() string { return joinHint(cfg) }}
	if err := p.breakLoops(&cfg.Node); err != nil {
		return err
	}
	p.follow(&cfg.Node, cfg.ClusterCIDR)
	prepared()
	return p.run(ctx, machine, components, goal, func(ctx context.Context) {
		renewCertificates(ctx, renewEvery, func() ([]string, error) {
			bundle, err := certificates(cfg)
			if err != nil {
				return nil, err
			}
			return bundle.Changed, machine.pluginUsers.renew()
		}, logging.Component(p.log, "pki"))
	})
}

// essential are the components without which a server is of no use: storage, the API and the node. A start that lacks
// another one is over all the same: systemd must not end etcd and the API for it.
func essential(components []lifecycle.Component) []string {
	return slices.DeleteFunc(names(components), func(name string) bool {
		return !slices.Contains([]string{"etcd", "apiserver", "kubelet"}, name)
	})
}

// server builds all components of a server, in the order in which they start. It touches nothing on the host.
func server(cfg *config.Server, machine *machine, log *logrus.Logger) ([]lifecycle.Component, error) {
	logFor := func(component string) logrus.FieldLogger { return logging.Component(log, component) }
	inProcess := client.New(cfg.URL(), logFor("client"))
	var b builder

	extensions, operation := serverPlugins(cfg, machine, inProcess, log)
	b.add(extensions, nil)
	b.add(operation, nil)

	etcdSocket := filepath.Join(cfg.SocketDir(), "etcd", "etcd.sock") // without TLS: its directory is root's
	store, err := etcd.New(etcd.Options{
		DataDir: filepath.Join(cfg.DataDir, "server", "db"),
		Socket:  etcdSocket,
		Name:    cfg.NodeName,
		Args:    machine.args.etcd,
		Zap:     logging.Zap(logging.Component(log, "etcd")),
	})
	b.add(store, err)
	var answers <-chan struct{}
	var slowSync func() time.Duration
	if store != nil {
		answers, slowSync = store.Answers(), store.SlowSync
	}

	b.election = election.New(election.Options{
		Client:   inProcess.Config(client.Election),
		Identity: cfg.NodeName,
		SlowSync: slowSync,
		Log:      logFor("election"),
	})
	once := b.election.Fence(inProcess) // for what runs on the server that leads

	dialKubelet := nodeAddresses(cfg).Dialer().DialContext
	figures := newMetrics(cfg, b.election, inProcess, metrics.Options{
		PKI:  machine.pki,
		Dial: dialKubelet,
		Log:  logFor("metrics-server"),
	})
	api, err := apiserver.New(apiserver.Options{
		BindAddress:      cfg.BindAddress,
		Port:             cfg.HTTPSPort,
		AdvertiseAddress: cfg.AdvertiseAddress,
		ServiceCIDRs:     cfg.ServiceCIDR,
		ClusterDomain:    cfg.ClusterDomain,
		EtcdEndpoint:     etcd.Endpoint(etcdSocket),
		EtcdAnswers:      answers,
		SlowSync:         slowSync,
		EncryptionConfig: machine.encryptionConfig,
		PKI:              machine.pki,
		Args:             machine.args.apiserver,
		DialKubelet:      dialKubelet,
		Client:           inProcess,
		Log:              logFor("apiserver"),
		Extend:           figures.extension,
		Plugins:          extensions,
	})
	b.add(api, err)
	b.add(b.election, nil)

	controllers, err := controllermanager.New(controllermanager.Options{
		ClusterCIDRs: cfg.ClusterCIDR,
		ServiceCIDRs: cfg.ServiceCIDR,
		PKI:          machine.pki,
		Args:         machine.args.controllerManager,
		Client:       once,
		Informers:    api.Informers,
		ClaimCSI: func() error {
			if cfg.Disabled("kubelet") {
				return nil
			}
			return kubelet.ClaimCSI(inProcess.NodeConfig(cfg.NodeName), cfg.NodeName)
		},
		Log: logFor("controller-manager"),
	})
	b.elect(controllers, err)

	b.elect(scheduler.New(scheduler.Options{
		Args:      machine.args.scheduler,
		Plugins:   extensions,
		Client:    once,
		Informers: api.Informers,
		Log:       logging.Component(log, "scheduler"),
	}))

	b.addJoining(cfg, machine, once, controllers, api.Informers, logFor)

	worker{
		cfg:       &cfg.Node,
		role:      config.RoleServer,
		cluster:   cfg.ClusterInfo("", ""), // its versions are of no use here
		node:      inProcess.NodeConfig(cfg.NodeName),
		hostPorts: inProcess.NodeConfig(cfg.NodeName),
		status:    inProcess.NodeConfig(cfg.NodeName),
		proxy:     inProcess.Config(client.Proxy),
		dns:       inProcess.Config(client.DNS),
		storage:   inProcess.Config(client.Storage),
		plugins:   extensions,
		declared:  elsewhere(cfg.Disabled),
		clientCA:  machine.pki.ClusterCA.Cert,
		serving:   machine.pki.KubeletServer,
		publish:   api.Informers,
	}.add(&b, machine, log)

	b.elect(dns.NewPublisher(dns.PublisherOptions{
		Client:     once.Config(client.DNS),
		Informers:  api.Informers,
		ClusterDNS: addresses(cfg.ClusterInfo("", "").ClusterDNS),
		Log:        logFor("dns-publisher"),
	}), nil)

	b.elect(manifests.New(manifests.Options{
		Client:   once.Config(client.Manifests),
		Dir:      filepath.Join(cfg.DataDir, "server", "manifests"),
		Embedded: embedded.Cluster(),
		Log:      logFor("manifests"),
	}))

	addServiceLB(&b, cfg, servicelb.Options{
		Client:    once.Config(client.ServiceLB),
		Informers: api.Informers,
		KubeletCA: machine.pki.KubeletTrust,
		Log:       logFor("servicelb"),
	})
	b.add(figures.Component, nil)
	return b.enabled(cfg.Disable)
}

// worker is what makes a machine run pods: a server's or an agent's.
type worker struct {
	cfg     *config.Node
	role    string // the value of config.RoleLabel
	machine string // the value of config.MachineLabel; empty: none
	cluster *config.ClusterInfo

	// Clients: the first three act as the node.
	node, hostPorts, status, proxy, dns, storage *rest.Config
	// disconnect ends connections to the API that are dead; nil where there are none.
	disconnect func()

	// plugins are those of this machine.
	plugins plugins.Set

	// declared are drivers of agents whose objects this server makes.
	declared []storage.Declared

	// The kubelet's: who may call it, and its certificate; without one it asks the server.
	clientCA string
	serving  pki.Pair

	// publish is where the network finds its peers; nil where the process shares no informers.
	publish func() informers.SharedInformerFactory
}

// add builds the components.
func (w worker) add(b *builder, machine *machine, log *logrus.Logger) {
	logFor := func(component string) logrus.FieldLogger { return logging.Component(log, component) }
	cfg, nodeIPs, clusterDNS := w.cfg, w.cfg.NodeIPs(), addresses(w.cluster.ClusterDNS)

	socket := filepath.Join(cfg.SocketDir(), "containerd", "containerd.sock")
	cniConfDir := filepath.Join(cfg.SocketDir(), "cni", "net.d")
	b.add(containerd.New(containerd.Options{
		Root:          filepath.Join(cfg.DataDir, "agent", "containerd"),
		State:         filepath.Join(cfg.SocketDir(), "containerd"),
		Socket:        socket,
		BinDir:        machine.binDir,
		CNIConfDir:    cniConfDir,
		CNIBinDirs:    []string{thirdPartyCNI, machine.binDir},
		RegistriesDir: registriesDir,
		SandboxImage:  images.PauseRef,
		Debug:         logging.Component(log, "containerd").Logger.IsLevelEnabled(logrus.DebugLevel),
		Log:           logFor("containerd"),
	}), nil)

	b.add(images.New(images.Options{
		ContainerdAddress: socket,
		Snapshotter:       func() string { return containerd.Snapshotter(filepath.Join(cfg.DataDir, "agent", "containerd")) },
		ArchiveDir:        filepath.Join(cfg.DataDir, "agent", "images"),
		Log:               logFor("images"),
	}), nil)

	b.addPodNetwork(network.Options{
		Backend:      network.Backend(w.cluster.Network),
		NodeName:     cfg.NodeName,
		NodeIPs:      nodeIPs,
		ClusterCIDRs: w.cluster.ClusterCIDR,
		Informers:    w.publish,
		Client:       w.node,
		Log:          logFor("network"),
	}, cni.Options{
		ConfDir:           cniConfDir,
		HostConfDir:       "/etc/cni/net.d",
		DataDir:           filepath.Join(cfg.DataDir, "agent", "cni"),
		ClusterCIDRs:      w.cluster.ClusterCIDR,
		ContainerdAddress: socket,
		Client:            w.node,
		NodeName:          cfg.NodeName,
		Log:               logFor("cni"),
	})

	b.add(storage.New(storage.Options{
		Plugins:        w.plugins,
		Client:         w.storage,
		Informers:      w.publish,
		NodeName:       cfg.NodeName,
		KubeletRootDir: cfg.KubeletRootDir,
		Central:        w.role == config.RoleServer,
		Declared:       w.declared,
		Log:            logFor("storage"),
	}), nil)

	b.add(kubelet.New(kubelet.Options{
		RootDir:       cfg.KubeletRootDir,
		StaticPodDir:  filepath.Join(cfg.DataDir, "agent", "static-pods"),
		NodeName:      cfg.NodeName,
		NodeIPs:       nodeIPs,
		Labels:        w.labels(),
		Taints:        cfg.NodeTaints,
		ClusterDNS:    clusterDNS,
		ClusterDomain: w.cluster.ClusterDomain,
		CRISocket:     socket,
		CgroupDriver:  cgroups.DetectCgroupDriver(),
		ResolvConf:    machine.resolvConf,
		ClientCA:      w.clientCA,
		Serving:       w.serving,
		CertDir:       filepath.Join(cfg.DataDir, "agent", "pki"),
		// The API server ends with this process, and so would a cluster whose only node is gone.
		KeepRegistered: w.role == config.RoleServer,
		ShutdownGrace:  kubelet.ShutdownGrace(),
		Args:           machine.args.kubelet,
		Client:         w.node,
		Disconnect:     w.disconnect,
		Log:            logFor("kubelet"),
	}))

	b.add(servicelb.NewHostPorts(servicelb.HostPortsOptions{Client: w.hostPorts, NodeName: cfg.NodeName, Log: logFor("host-ports")}), nil)

	b.add(proxy.New(proxy.Options{
		Client:       w.proxy,
		NodeName:     cfg.NodeName,
		NodeIPs:      nodeIPs,
		ClusterCIDRs: w.cluster.ClusterCIDR,
		Args:         machine.args.proxy,
		Log:          logFor("proxy"),
	}))

	b.add(dns.New(dns.Options{
		Client:        w.dns,
		NodeName:      cfg.NodeName,
		NodeIPs:       nodeIPs,
		ClusterDNS:    clusterDNS,
		ClusterDomain: w.cluster.ClusterDomain,
		ClusterCIDRs:  w.cluster.ClusterCIDR,
		Events:        w.role == config.RoleServer,
		Log:           logFor("dns"),
	}), nil)

	b.add(componentstatus.New(componentstatus.Options{
		Observer: machine.status,
		NodeName: cfg.NodeName,
		Client:   w.status,
		Log:      logFor("status"),
	}), nil)
}

// labels are those with which the node registers.
func (w worker) labels() []string {
	labels := append(slices.Clone(w.cfg.NodeLabels), config.RoleLabel+"="+w.role)
	if w.machine != "" {
		labels = append(labels, config.MachineLabel+"="+w.machine)
	}
	return labels
}

// addresses parses what the configuration has checked.
func addresses(texts []string) []net.IP {
	ips := make([]net.IP, 0, len(texts))
	for _, text := range texts {
		ips = append(ips, net.ParseIP(text))
	}
	return ips
}

func names(components []lifecycle.Component) []string {
	all := make([]string, 0, len(components))
	for _, c := range components {
		all = append(all, c.Name())
	}
	return all
}
