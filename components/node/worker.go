package node

import (
	"context"
	"io"
	"path/filepath"
	"slices"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/worker/cni"
	"kubelith.io/kubelith/components/worker/containerd"
	"kubelith.io/kubelith/components/worker/dns"
	"kubelith.io/kubelith/components/worker/hostports"
	"kubelith.io/kubelith/components/worker/images"
	"kubelith.io/kubelith/components/worker/kubelet"
	"kubelith.io/kubelith/components/worker/network"
	"kubelith.io/kubelith/components/worker/podlink"
	"kubelith.io/kubelith/components/worker/policy"
	"kubelith.io/kubelith/components/worker/proxy"
	"kubelith.io/kubelith/components/worker/recorder"
	componentstatus "kubelith.io/kubelith/components/worker/status"
	"kubelith.io/kubelith/components/worker/storage"
	"kubelith.io/kubelith/components/worker/upgrader"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/runtime/cgroups"
)

// workerOptions are what differs between a server's own node and an agent.
type workerOptions struct {
	cfg       *config.Node
	machine   *machine
	log       *logrus.Logger
	role      string   // the value of names.RoleLabel
	machineID string   // the value of names.MachineLabel; empty: none
	apiNames  []string // of a server's API
	cluster   *config.ClusterInfo

	// client returns the configuration with which a component calls the API. On a server it has that identity, of
	// base/client, or is the node with asNode; on an agent it is the node whatever the identity, except for storage.
	client func(component, identity string) *rest.Config
	// disconnect closes dead connections to the API; nil where there are none.
	disconnect func()
	// plugins are those of this machine.
	plugins plugins.Set

	// The kubelet's: the CA of its clients, and its certificate; without one it requests it from the server.
	clientCA string
	serving  pki.Pair

	// fetch writes the program of an upgrade, from another server on a server; nil: from the API.
	fetch func(ctx context.Context, sum string, to io.Writer) error

	// publish is where the network finds its peers; nil where the process shares no informers.
	publish func() informers.SharedInformerFactory
}

// asNode is no identity: a component that calls the API as its node.
const asNode = ""

// worker adds the components that run pods on a machine: a server's own node, or an agent. It returns the kubelet; nil
// when its options were refused.
func worker(b *builder, w workerOptions) *kubelet.Server {
	logFor := func(component string) logrus.FieldLogger { return logging.Component(w.log, component) }
	recording := w.machine.nodeRecords(w.cfg.NodeName)
	cfg, nodeIPs, clusterDNS := w.cfg, w.cfg.NodeIPs(), w.cluster.DNSIPs()

	socket := cfg.ContainerdSocket()
	cniConfDir, cniSocket := filepath.Join(cfg.SocketDir(), "cni", "net.d"), filepath.Join(cfg.SocketDir(), "cni", "podlink.sock")
	runtime := containerd.New(containerd.Options{
		Root:           filepath.Join(cfg.DataDir, datadir.Containerd),
		State:          filepath.Join(cfg.SocketDir(), "containerd"),
		Socket:         socket,
		BinDir:         w.machine.binDir,
		CNIConfDir:     cniConfDir,
		CNIBinDirs:     []string{thirdPartyCNI, w.machine.binDir},
		RegistriesDir:  registriesDir,
		DefaultRuntime: cfg.DefaultRuntime,
		Trial:          w.machine.dir.Trial,
		Calls:          recording.calls(),
		Ended:          recording.ended(),
		Debug:          logging.Component(w.log, "containerd").Logger.IsLevelEnabled(logrus.DebugLevel),
		Log:            logFor("containerd"),
	})
	b.add(runtime)

	// Nothing imports images without a runtime.
	b.with("containerd").add(images.New(images.Options{
		ContainerdAddress: socket,
		Snapshotter:       func() string { return containerd.Snapshotter(filepath.Join(cfg.DataDir, datadir.Containerd)) },
		ArchiveDir:        filepath.Join(cfg.DataDir, "agent", "images"),
		Log:               logFor("images"),
	}))

	b.addPodNetwork(network.Options{
		Backend:      network.Backend(w.cluster.Network),
		NodeName:     cfg.NodeName,
		NodeIPs:      nodeIPs,
		ClusterCIDRs: w.cluster.ClusterCIDR,
		Informers:    w.publish,
		Client:       w.client("network", asNode),
		KeyFile:      filepath.Join(cfg.DataDir, "agent", "wireguard.key"),
		Log:          logFor("network"),
	}, cni.Options{
		ConfDir:           cniConfDir,
		HostConfDir:       "/etc/cni/net.d",
		DataDir:           filepath.Join(cfg.DataDir, "agent", "cni"),
		Socket:            cniSocket,
		ClusterCIDRs:      w.cluster.ClusterCIDR,
		ContainerdAddress: socket,
		Client:            w.client("cni", asNode),
		NodeName:          cfg.NodeName,
		Log:               logFor("cni"),
	}, podlink.Options{
		Socket: cniSocket, BinDir: w.machine.binDir, Log: logFor("podlink"),
	}, w.machine.policies(cfg), policy.Options{
		NodeName:     cfg.NodeName,
		NodeIPs:      nodeIPs,
		ClusterCIDRs: w.cluster.ClusterCIDR,
		ClusterDNS:   clusterDNS,
		Dir:          filepath.Join(cfg.SocketDir(), "network-policy"),
		Informers:    w.publish,
		Client:       w.client("network-policy", asNode),
		LogDrops:     w.machine.policyLog(cfg),
		Log:          logFor("network-policy"),
	})

	b.add(storage.New(storage.Options{
		Plugins:        w.plugins,
		Client:         w.client("storage", client.Storage),
		Informers:      w.publish,
		NodeName:       cfg.NodeName,
		KubeletRootDir: cfg.KubeletRootDir,
		Calls:          recording.csi(),
		Agent:          w.role == names.RoleAgent,
		Log:            logFor("storage"),
	}))

	node, err := kubelet.New(kubelet.Options{
		RootDir:       cfg.KubeletRootDir,
		StaticPodDir:  filepath.Join(cfg.DataDir, "agent", "static-pods"),
		NodeName:      cfg.NodeName,
		NodeIPs:       nodeIPs,
		ExternalIPs:   len(cfg.NodeExternalIP) > 0,
		Labels:        w.labels(),
		Taints:        cfg.NodeTaints,
		ClusterDNS:    clusterDNS,
		ClusterDomain: w.cluster.ClusterDomain,
		CRISocket:     socket,
		CgroupDriver:  cgroups.DetectCgroupDriver(),
		ResolvConf:    w.machine.resolvConf,
		ClientCA:      w.clientCA,
		Serving:       w.serving,
		CertDir:       filepath.Join(cfg.DataDir, "agent", "pki"),
		// The API server ends with this process, and so would a cluster whose only node is gone.
		KeepRegistered:         w.role == names.RoleServer,
		AfterControllerManager: w.role == names.RoleServer,
		ShutdownGrace:          kubelet.ShutdownGrace(),
		Trace:                  recording.kubelet(),
		Runtime:                runtime.RuntimeService,
		Volumes:                recording.volumes(),
		Args:                   w.machine.args.kubelet,
		Client:                 w.client("kubelet", asNode),
		Disconnect:             w.disconnect,
		Log:                    logFor("kubelet"),
	})
	b.add(node, err)

	// Without a kubelet there is no Node to annotate.
	b.with("kubelet").add(hostports.New(hostports.Options{
		Client:   w.client("host-ports", asNode),
		NodeName: cfg.NodeName,
		Log:      logFor("host-ports"),
	}))

	b.with("kubelet").add(upgrader.New(upgrader.Options{
		Client:   w.client("upgrader", asNode),
		NodeName: cfg.NodeName,
		DataDir:  cfg.DataDir,
		Fetch:    w.fetch,
		Log:      logFor("upgrader"),
	}))

	b.add(proxy.New(proxy.Options{
		Client:       w.client("proxy", client.Proxy),
		NodeName:     cfg.NodeName,
		NodeIPs:      nodeIPs,
		ClusterCIDRs: w.cluster.ClusterCIDR,
		Args:         w.machine.args.proxy,
		Log:          logFor("proxy"),
	}))

	b.add(dns.New(dns.Options{
		Client:        w.client("dns", client.DNS),
		NodeName:      cfg.NodeName,
		NodeIPs:       nodeIPs,
		ClusterDNS:    clusterDNS,
		ClusterDomain: w.cluster.ClusterDomain,
		ClusterCIDRs:  w.cluster.ClusterCIDR,
		Events:        w.role == names.RoleServer,
		Log:           logFor("dns"),
	}))

	recorderOptions := recorder.Options{
		Record:    w.machine.record,
		NodeName:  cfg.NodeName,
		Collector: cfg.OTLPEndpoint,
		Log:       logFor("recorder"),
	}
	if w.role == names.RoleAgent {
		recorderOptions.Client = w.client("recorder", asNode)
	}
	b.add(recorder.New(recorderOptions))

	b.add(componentstatus.New(componentstatus.Options{
		Observer:     w.machine.status,
		NodeName:     cfg.NodeName,
		External:     cfg.NodeExternalIP,
		APINames:     w.apiNames,
		Client:       w.client("status", asNode),
		Certificates: func() ([]pki.Certificate, error) { return Certificates(cfg) },
		Log:          logFor("status"),
	}))
	return node
}

// labels returns the labels with which the node registers.
func (w workerOptions) labels() []string {
	labels := append(slices.Clone(w.cfg.NodeLabels), names.RoleLabel+"="+w.role)
	if w.machineID != "" {
		labels = append(labels, names.MachineLabel+"="+w.machineID)
	}
	return labels
}
