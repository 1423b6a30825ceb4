// Package names has the names that several packages and users share: labels, annotations, identities, objects and
// ports. It imports nothing, so that every package can use a name without importing the package that defined it. A name
// that only one package uses stays there.
package names

// ManagedByLabel with the value ManagedBy is on objects that Kubelith creates.
const ManagedByLabel, ManagedBy = "app.kubernetes.io/managed-by", "kubelith"

// Prefix begins the names of our labels and annotations.
const Prefix = "kubelith.io/"

// Labels and annotations of Nodes. An agent cannot change the labels (components/controlplane/apiserver/restriction).
const (
	// RoleLabel tells Kubelith's nodes from others, and servers from agents: its values are RoleServer and RoleAgent.
	// Nodes without it, such as a simulator's, have neither a kubelet nor pods that can be reached.
	RoleLabel  = "kubelith.io/role"
	RoleServer = "server"
	RoleAgent  = "agent"
	// MachineLabel is on an agent's Node: the beginning of the SHA-256 of its machine's key, as long as a label may be.
	MachineLabel = "kubelith.io/machine"
	// RuntimeLabel plus a name of runtime/oci is a label of the nodes that have this runtime: the RuntimeClass selects
	// it.
	RuntimeLabel = "kubelith.io/runtime-"
	// NodeIPAnnotation is on an agent's certificate request: the addresses that its Node will have.
	NodeIPAnnotation = "kubelith.io/node-ip"
	// HostPortsAnnotation has the ports on which a node's host listens, as "22/TCP,111/UDP". The node writes it itself:
	// a wrong one takes Services away from that node alone.
	HostPortsAnnotation = "kubelith.io/host-ports"
	// ExternalIPAnnotation has the addresses at which the node claims to be reachable from outside, separated by
	// commas. The node writes it itself; components/cluster/approver decides whether they become its ExternalIPs.
	// ExternalIPLabel with the value ExternalIPAllowed is an administrator's permission.
	ExternalIPAnnotation = "kubelith.io/external-ip"
	ExternalIPLabel      = "kubelith.io/external-ip"
	ExternalIPAllowed    = "allowed"
	// APINamesAnnotation is on a server's Node: the names and addresses at which its API is reached, separated by
	// commas. No other node gets one of them. It counts only on Nodes with the label of servers.
	APINamesAnnotation = "kubelith.io/api-names"
	// WireGuardKeyAnnotation has the node's public key, in base64. The node writes it itself; the apiserver refuses an
	// agent the key of another Node.
	WireGuardKeyAnnotation = "kubelith.io/wireguard-key"
	// CAAnnotation has the rotation of the CAs that an agent follows, and the phase that it has reached, as
	// "20261124-10a393 trust". The node writes it itself: a wrong one harms that node alone.
	CAAnnotation = "kubelith.io/ca-rotation"
)

// ClusterPolicies is the CustomResourceDefinition of ClusterNetworkPolicies.
const ClusterPolicies = "clusternetworkpolicies.policy.networking.k8s.io"

// PolicyCondition is a condition of Nodes: False where network policies are not enforced. A node whose pod network is a
// third party's has none.
const PolicyCondition = "KubelithNetworkPolicies"

// EtcdSpaceCondition is a condition of servers' Nodes: True where etcd's database is nearly full or full.
const EtcdSpaceCondition = "EtcdSpacePressure"

// Objects of storage drivers.
const (
	// NodeLocalAnnotation, on a CSIDriver, means that each of its volumes is on one node. Its value is the topology key
	// whose value is the name of that node. Agents cannot write CSIDrivers; with it, they may create volumes of the
	// driver on themselves.
	NodeLocalAnnotation = "kubelith.io/node-local"
)

// Users and groups.
const (
	// Admins is the group of the administrator's kubeconfig. A binding grants its rights and can be deleted.
	Admins = "kubelith:admins"
	// JoiningAgents is the group of machines that present a join token: what an agent may do before it has a
	// certificate.
	JoiningAgents = "system:bootstrappers:kubelith:agents"
	// JoiningServers is the group of machines that present a token with which they become servers.
	JoiningServers = "system:bootstrappers:kubelith:servers"
	// Servers is the group of the cluster's servers towards each other; ServerUserPrefix plus a server's name is its
	// user.
	Servers          = "system:kubelith:servers"
	ServerUserPrefix = "system:kubelith:server:"
	// NodeUserPrefix plus a node's name is the user of its kubelet; upstream's name.
	NodeUserPrefix = "system:node:"
	// KubeletClient is the user as which the API server calls kubelets; upstream's name.
	KubeletClient = "kube-apiserver-kubelet-client"
)

// Objects that upstream's tools know by these names.
const (
	// MetricsAPIService is the APIService that every installation of metrics-server has. Without a Service in it, the
	// aggregator serves the group from its own process.
	MetricsAPIService = "v1beta1.metrics.k8s.io"
	// DNSService is the cluster DNS' Service in kube-system, and its label k8s-app: upstream's tools look for it.
	DNSService = "kube-dns"
)

// DNSManager is the field manager of the cluster DNS' objects, and the source of its Events.
const DNSManager = "kubelith-dns"

// ConfigMaps and Secrets in kube-system.
const (
	// ClusterInfo is the ConfigMap from which agents learn the cluster's settings, under the key ClusterInfoKey.
	ClusterInfo    = "kubelith-cluster"
	ClusterInfoKey = "cluster.json"
	// ReservationPrefix plus a node's name is the ConfigMap that keeps the name for one machine: ReservationMachine is
	// the SHA-256 of the machine's key, ReservationToken the id of the join token that it presented.
	ReservationPrefix  = "kubelith-node."
	ReservationMachine = "machine"
	ReservationToken   = "token"
	// DNSCustom is the ConfigMap that extends the DNS configuration on every node.
	DNSCustom = "coredns-custom"
	// EncryptionState is the ConfigMap with the phase of a rotation of the key for Secrets, without the key.
	EncryptionState = "kubelith-encryption"
	// CARotation is the ConfigMap with the phase of a rotation of the CAs, without their keys.
	CARotation = "kubelith-ca-rotation"
	// Lease is held by the leading server.
	Lease = "kubelith"
	// VIPLease is held by the server that carries the virtual address.
	VIPLease = "kubelith-vip"
	// UpgradeLease is held by the server on which kubelith upgrade --cluster runs.
	UpgradeLease = "kubelith-upgrade"
)

// Paths of the API that components serve. Those that only one component uses stay in its handler.
const (
	// ServersPath has the servers: GET lists them, POST admits one, DELETE removes one.
	ServersPath = "/kubelith/v1/servers"
	// CAPath has the rotation of the CAs, CAKeyPath its keys, for the other servers, and CATrustPath the CAs that a
	// node trusts (a pki.Trusted).
	CAPath      = "/kubelith/v1/ca"
	CAKeyPath   = "/kubelith/v1/ca/next"
	CATrustPath = "/kubelith/v1/ca/trust"
	// EncryptionPath has the rotation of the key for Secrets, EncryptionKeyPath that key, for the other servers.
	EncryptionPath    = "/kubelith/v1/encryption"
	EncryptionKeyPath = "/kubelith/v1/encryption/key"
	// PolicyPodsPath sends a node what its network policies need of the cluster's pods.
	PolicyPodsPath = "/kubelith/v1/network-policy/pods"
	// UpgradesPath plus the SHA-256 of a program is that program.
	UpgradesPath = "/kubelith/v1/upgrades/"
	// RefusedCA and the next two do not exist: a machine requests the one that says why it refuses the server, which
	// logs that.
	RefusedCA      = "/kubelith/refused/ca"
	RefusedClock   = "/kubelith/refused/clock"
	RefusedVersion = "/kubelith/refused/version"
)

// Names in a node's kernel.
const (
	Bridge         = "cni0"             // the pods' bridge; the name that most tools expect
	NFTable        = "kubelith_network" // the nftables table (family inet) of the pod network
	PolicyTable    = "kubelith_policy"  // the nftables table (family inet) of network policies
	VXLANTable     = "kubelith_vxlan"   // the nftables table (family inet) that admits VXLAN packets of the nodes only
	DNSTable       = "kubelith_dns"     // the nftables table (family inet) that keeps the port of DNS for root
	WireGuardLink  = "kubelith-wg"      // the interface to the other nodes with WireGuard
	LinkAlias      = "kubelith"         // alias (ip-link(8)) of the interfaces to other nodes
	RouteProtocol  = 107                // origin (ip-route(8), "proto") of the routes through other nodes; not in rt_protos(5)
	PolicyLogGroup = 10423              // the NFLOG group to which dropped packets are logged; others usually take low numbers
)

// Ports that no flag changes.
const (
	DNSPort         = 10053 // of CoreDNS on a node; resolvers of the host use 53
	ProxyHealthPort = 10256 // kube-proxy's default; load balancers outside the cluster probe it
	VXLANPort       = 8472  // flannel's default
	PeerPort        = 2380  // of etcd, between servers; etcd's default
	WireGuardPort   = 51820 // usual for WireGuard; none is assigned
)

// EtcdSocket is the file name of the socket of etcd's API.
const EtcdSocket = "etcd.sock"

// ContainerdNamespace is where the container runtime keeps images and containers in containerd. It is part of the API
// of containerd's CRI plugin.
const ContainerdNamespace = "k8s.io"

// Programs of the payload that others of its programs start.
const (
	PauseProgram = "kubelith-pause" // the process of a pod's sandbox; the shim finds it beside itself
)
