// Package config is the configuration of `kubelith server` and `kubelith agent`: a typed struct for each, filled from
// defaults, then a YAML file, then the command line, and checked before anything starts. Node is what both have in
// common. ClusterInfo is what a server sends to its agents.
//
// It only reads and checks. It opens no port, creates no file and knows no component; components/node decides what a
// setting means. It checks the form of upstream's own flags (--apiserver-arg and the like); their component checks
// their meaning.
//
// The flow is Load or LoadAgent (defaults <- file <- flags), Validate, and DetectNodeIPs when no node IP was given.
package config

import (
	"net/netip"
	"path/filepath"

	"kubelith.io/kubelith/base/names"
)

// Server is the configuration of a server: the newest version of kind ServerConfig, and the table from which flags,
// file keys and defaults come. Each field, and each of Node, is one flag (tag "flag", also set by the variable in
// "env"; its help is in usages) and one key of the file (tag "json"); a multi-line setting has no flag.
type Server struct {
	Node

	WriteKubeconfig string `json:"writeKubeconfig" flag:"write-kubeconfig"`

	// CIDRs, the primary family first; both lists have the same families. They cannot change later.
	ClusterCIDR   []string `json:"clusterCIDR" flag:"cluster-cidr"`
	ServiceCIDR   []string `json:"serviceCIDR" flag:"service-cidr"`
	ClusterDomain string   `json:"clusterDomain" flag:"cluster-domain"`
	TLSSAN        []string `json:"tlsSAN" flag:"tls-san"`

	Network string `json:"network" flag:"network"`

	// Where the API is served, and where other processes find it.
	BindAddress      string `json:"bindAddress" flag:"bind-address"`
	AdvertiseAddress string `json:"advertiseAddress" flag:"advertise-address"`
	HTTPSPort        int    `json:"httpsPort" flag:"https-port"`

	// VIP is an address, VIPNone, or empty: that of the other servers. VIPAdopted: it was the cluster's when this
	// server joined.
	VIP        string `json:"vip" flag:"vip"`
	VIPAdopted bool   `json:"-"`

	// To share the cluster of other servers. A server that has joined needs neither any more.
	Server    string `json:"server" flag:"server"`
	Token     string `json:"token" flag:"token" env:"KUBELITH_TOKEN"`
	TokenFile string `json:"tokenFile" flag:"token-file"`

	// Witness: this machine runs etcd and nothing else, and settings of everything else have no effect.
	Witness bool `json:"witness" flag:"witness"`

	JoinToken string `json:"joinToken" flag:"join-token"`

	EtcdArgs              Args `json:"etcdArgs" flag:"etcd-arg"`
	APIServerArgs         Args `json:"apiserverArgs" flag:"apiserver-arg"`
	ControllerManagerArgs Args `json:"controllerManagerArgs" flag:"controller-manager-arg"`
	SchedulerArgs         Args `json:"schedulerArgs" flag:"scheduler-arg"`

	// Snapshots of the cluster. The schedule is a cron expression in the machine's time zone, or SnapshotsNever.
	SnapshotSchedule       string   `json:"snapshotSchedule" flag:"snapshot-schedule" alias:"etcd-snapshot-schedule-cron"`
	SnapshotRetention      int      `json:"snapshotRetention" flag:"snapshot-retention" alias:"etcd-snapshot-retention"`
	SnapshotDir            string   `json:"snapshotDir" flag:"snapshot-dir" alias:"etcd-snapshot-dir"`
	SnapshotPassphraseFile string   `json:"snapshotPassphraseFile" flag:"snapshot-passphrase-file"`
	SnapshotRecipients     []string `json:"snapshotRecipients" flag:"snapshot-recipient"`

	// S3 is where snapshots are copied to; its settings follow.
	S3

	// Profile is empty or one of profiles(); agents learn it from the server.
	Profile string `json:"profile" flag:"profile"`

	// Plugins are read again while the server runs, see File.
	Plugins []Plugin `json:"plugins"`

	// File is where the file is or would be, absolute; empty with --config "".
	File string `json:"-"`
}

// DefaultFile is read when --config is not given and the file exists.
const DefaultFile = "/etc/kubelith/config.yaml"

// Default returns the configuration that applies where neither file nor flags say otherwise. NodeName, NodeIP and
// AdvertiseAddress depend on the host and are empty.
func Default() *Server {
	return &Server{
		Node:            defaultNode(),
		WriteKubeconfig: "/etc/kubelith/kubelith.yaml",
		ClusterCIDR:     []string{"10.42.0.0/16"},
		ServiceCIDR:     []string{"10.43.0.0/16"},
		ClusterDomain:   "cluster.local",
		Network:         "vxlan",
		BindAddress:     "0.0.0.0",
		HTTPSPort:       6443,
		JoinToken:       JoinTokenDaily,

		SnapshotSchedule:  "0 */12 * * *",
		SnapshotRetention: 5,
		S3:                defaultS3(),
	}
}

// EtcdSocket is where etcd serves clients, without TLS: its directory is root's.
func (s *Server) EtcdSocket() string { return filepath.Join(s.SocketDir(), "etcd", names.EtcdSocket) }

// kind implements settings.
func (s *Server) kind() string { return "ServerConfig" }

// disableable implements settings.
func (s *Server) disableable() []string { return optional(OnServers) }

// paths implements settings.
func (s *Server) paths() map[string]*string {
	paths := s.Node.paths()
	paths["writeKubeconfig"] = &s.WriteKubeconfig
	paths["snapshotDir"] = &s.SnapshotDir
	paths["snapshotPassphraseFile"] = &s.SnapshotPassphraseFile
	paths["snapshotS3CredentialsFile"] = &s.SnapshotS3CredentialsFile
	paths["snapshotS3CAFile"] = &s.SnapshotS3CAFile
	paths["tokenFile"] = &s.TokenFile
	return paths
}

// VIPNone is the value of VIP of a server that never carries a virtual address.
const VIPNone = "none"

// VirtualAddress returns VIP parsed; the zero Addr without one.
func (s *Server) VirtualAddress() netip.Addr {
	address, _ := netip.ParseAddr(s.VIP)
	return address
}

// NeedsRoot reports whether a component is enabled that needs root: it runs containers, mounts, or changes the host's
// network. A control plane alone runs as any user.
func (s *Server) NeedsRoot() bool {
	return !s.Disabled("containerd") || !s.Disabled("kubelet") || !s.Disabled("proxy") || s.VirtualAddress().IsValid()
}

// What JoinToken may be.
const (
	JoinTokenDaily = "daily"
	JoinTokenNone  = "none"
)

// SnapshotsNever is the schedule without snapshots.
const SnapshotsNever = "never"

func joinTokens() []string { return []string{JoinTokenDaily, JoinTokenNone} }
func profiles() []string   { return []string{"cis"} }

func networks() []string { return []string{"vxlan", "wireguard", "host-gw", "bridge", "noop", "none"} }
