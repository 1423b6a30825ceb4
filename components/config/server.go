// Package config is the configuration of `kubelith server`: one typed struct that is filled from
// defaults, then a YAML file, then the command line, and checked before anything is started.
//
// It only reads and checks. It opens no port, creates no file and knows no component; what a setting
// means is decided in components/node. Values of upstream's own flags (--apiserver-arg and the like) are
// checked for their form here and for their meaning by the component that they are for.
//
// The flow is Load (defaults <- file <- flags), Validate, and DetectNodeIPs when no node IP was given.
package config

// Args are settings of an upstream component as a list of "key=value", in the order given. They are a
// type of their own because a comma belongs to the value ("feature-gates=A=true,B=false").
type Args []string

// Server is the configuration of a server: the newest version of kind ServerConfig, and the table from
// which flags, file keys, defaults and help come. Each field is one flag (tag "flag", help in "usage")
// and one key of the file (tag "json").
type Server struct {
	// Paths: Load makes them absolute, and what is missing is made. Sockets are below RunDir and KubeletRootDir, which
	// have to be short therefore.
	DataDir         string `json:"dataDir" flag:"data-dir" usage:"directory of the cluster's data"`
	RunDir          string `json:"runDir" flag:"run-dir" usage:"directory of sockets and of containerd's state; emptied by a reboot"`
	KubeletRootDir  string `json:"kubeletRootDir" flag:"kubelet-root-dir" usage:"directory of the kubelet, where CSI drivers find it (device plugins always: /var/lib/kubelet/device-plugins)"`
	WriteKubeconfig string `json:"writeKubeconfig" flag:"write-kubeconfig" usage:"file to write the admin kubeconfig to"`

	// CIDRs, the primary family first; both lists have the same families. They cannot change later.
	ClusterCIDR   []string `json:"clusterCIDR" flag:"cluster-cidr" usage:"network of the pods, one per IP family"`
	ServiceCIDR   []string `json:"serviceCIDR" flag:"service-cidr" usage:"network of the Services, one per IP family"`
	ClusterDomain string   `json:"clusterDomain" flag:"cluster-domain" usage:"DNS domain of the cluster"`

	// The node. Labels and taints of a Node that exists already are left alone.
	NodeIP     []string `json:"nodeIP" flag:"node-ip" usage:"address of this node, one per IP family (default: that of the interface with the default route)"`
	NodeName   string   `json:"nodeName" flag:"node-name" usage:"name of this node (default: the host name)"`
	NodeLabels []string `json:"nodeLabels" flag:"node-label" usage:"label of this node, KEY=VALUE, set when it registers"`
	NodeTaints []string `json:"nodeTaints" flag:"node-taint" usage:"taint of this node, KEY[=VALUE]:EFFECT, set when it registers"`
	TLSSAN     []string `json:"tlsSAN" flag:"tls-san" usage:"further host name or address in the apiserver's certificate"`

	// What is run.
	Disable []string `json:"disable" flag:"disable" usage:"component not to run: containerd, controller-manager, dns, kubelet, network, proxy, scheduler"`
	Network string   `json:"network" flag:"network" usage:"pod network to configure: bridge, noop (host network only) or none (another CNI provider)"`

	// Where the API is served and, to others than this process, found.
	BindAddress      string `json:"bindAddress" flag:"bind-address" usage:"address on which the API is served"`
	AdvertiseAddress string `json:"advertiseAddress" flag:"advertise-address" usage:"address at which others reach the API (default: the first node IP)"`
	HTTPSPort        int    `json:"httpsPort" flag:"https-port" usage:"port on which the API is served"`

	// The log, of all components.
	LogFormat string `json:"logFormat" flag:"log-format" usage:"text or json"`
	LogLevel  string `json:"logLevel" flag:"log-level" usage:"error, warn, info, debug or trace"`

	// Flags of upstream's programs without their dashes; the last of a key wins where upstream takes one value.
	EtcdArgs              Args `json:"etcdArgs" flag:"etcd-arg" usage:"upstream flag of etcd, KEY=VALUE"`
	APIServerArgs         Args `json:"apiserverArgs" flag:"apiserver-arg" usage:"upstream flag of kube-apiserver, KEY=VALUE"`
	ControllerManagerArgs Args `json:"controllerManagerArgs" flag:"controller-manager-arg" usage:"upstream flag of kube-controller-manager, KEY=VALUE"`
	SchedulerArgs         Args `json:"schedulerArgs" flag:"scheduler-arg" usage:"upstream flag of kube-scheduler, KEY=VALUE"`
	KubeletArgs           Args `json:"kubeletArgs" flag:"kubelet-arg" usage:"upstream flag of kubelet, KEY=VALUE"`
	ProxyArgs             Args `json:"proxyArgs" flag:"proxy-arg" usage:"upstream flag of kube-proxy, KEY=VALUE"`
}

// DefaultFile is read when --config is not given and the file exists.
const DefaultFile = "/etc/kubelith/config.yaml"

// Default returns the configuration that applies where neither file nor flags say otherwise. NodeName,
// NodeIP and AdvertiseAddress depend on the host and are empty.
func Default() *Server {
	return &Server{
		DataDir:         "/var/lib/kubelith",
		RunDir:          "/run/kubelith",
		KubeletRootDir:  "/var/lib/kubelet",
		WriteKubeconfig: "/etc/kubelith/kubelith.yaml",
		ClusterCIDR:     []string{"10.42.0.0/16"},
		ServiceCIDR:     []string{"10.43.0.0/16"},
		ClusterDomain:   "cluster.local",
		Network:         "bridge",
		BindAddress:     "0.0.0.0",
		HTTPSPort:       6443,
		LogFormat:       "text",
		LogLevel:        "info",
	}
}

// The values that some fields are restricted to.
func disableable() []string {
	return []string{"containerd", "controller-manager", "dns", "kubelet", "network", "proxy", "scheduler"}
}
func networks() []string   { return []string{"bridge", "noop", "none"} }
func logFormats() []string { return []string{"text", "json"} }
func logLevels() []string  { return []string{"error", "warn", "info", "debug", "trace"} }
