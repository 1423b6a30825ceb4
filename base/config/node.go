package config

import (
	"crypto/sha256"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/runtime/oci"
	"kubelith.io/kubelith/trace/record"
)

// Node is what servers and agents have in common: the settings of the node itself.
type Node struct {
	// Paths: Load makes them absolute, and missing directories are created. Sockets are below SocketDir and
	// KubeletRootDir, so the latter must be short.
	DataDir        string `json:"dataDir" flag:"data-dir" usage:"directory of the cluster's data"`
	RunDir         string `json:"runDir" flag:"run-dir" usage:"directory of sockets and of containerd's state; emptied by a reboot"`
	KubeletRootDir string `json:"kubeletRootDir" flag:"kubelet-root-dir" usage:"directory of the kubelet, where CSI drivers find it (device plugins always: /var/lib/kubelet/device-plugins)"`

	// Labels and taints of an existing Node are not changed.
	NodeIP []string `json:"nodeIP" flag:"node-ip" usage:"address of this node, one per IP family (default: that of the interface with the default route)"`
	// NodeIPDetected: NodeIP was detected on the host at the start, and is updated when the host's addresses change. An
	// address that a user has set is not.
	NodeIPDetected bool `json:"-"`
	// NodeExternalIP is what the node claims; the server decides (components/cluster/approver).
	NodeExternalIP []string `json:"nodeExternalIP" flag:"node-external-ip" usage:"address at which this node is reached from outside, one per IP family, such as the public address of a NAT: the ExternalIP of its Node"`

	NodeName   string   `json:"nodeName" flag:"node-name" usage:"name of this node (default: the host name)"`
	NodeLabels []string `json:"nodeLabels" flag:"node-label" usage:"label of this node, KEY=VALUE, set when it registers"`
	NodeTaints []string `json:"nodeTaints" flag:"node-taint" usage:"taint of this node, KEY[=VALUE]:EFFECT, set when it registers"`

	// DefaultRuntime starts the containers of pods without a runtimeClassName.
	DefaultRuntime string `json:"defaultRuntime" flag:"default-runtime" usage:"runtime of pods without a runtimeClassName: runc, or crun or youki of this host"`

	// Components that do not run; the help adds the names that a server or an agent accepts.
	Disable []string `json:"disable" flag:"disable" usage:"component not to run"`

	// What network policies drop is logged by the component network-policy.
	NetworkPolicyLog int `json:"networkPolicyLog" flag:"network-policy-log" usage:"log packets that network policies drop, with pods and policies, at most this many a second; 0 logs none"`

	// The log, of all components.
	LogFormat string `json:"logFormat" flag:"log-format" usage:"text or json"`
	LogLevel  string `json:"logLevel" flag:"log-level" usage:"error, warn, info, debug or trace; for some components as in info,kubelet=debug"`
	LogFile   string `json:"logFile" flag:"log-file" usage:"file of the log, rotated at 10 MiB (default: standard error; on a terminal a file in the run directory)"`

	// The flight recorder, see docs/trace.md. TraceAge is a duration as Go writes it; OTLPEndpoint is the URL of a
	// collector.
	TraceMemory  int    `json:"traceMemory" flag:"trace-memory" usage:"memory of the flight recorder in MiB, from 1; 0 switches it off"`
	TraceAge     string `json:"traceAge" flag:"trace-age" usage:"how long the flight recorder keeps what happened, as in 90m or 24h"`
	OTLPEndpoint string `json:"otlpEndpoint" flag:"otlp-endpoint" usage:"collector to which the flight recorder exports spans by OTLP: http://HOST:4317 (gRPC without TLS) or https://HOST:4317"`

	// Flags of upstream's programs without their dashes; the last of a key wins where upstream takes one value.
	KubeletArgs Args `json:"kubeletArgs" flag:"kubelet-arg" usage:"upstream flag of kubelet, KEY=VALUE"`
	ProxyArgs   Args `json:"proxyArgs" flag:"proxy-arg" usage:"upstream flag of kube-proxy, KEY=VALUE"`
}

// Args are settings of an upstream component as a list of "key=value", in the order given. They have their own type
// because a comma belongs to the value ("feature-gates=A=true,B=false").
type Args []string

func defaultNode() Node {
	return Node{
		DataDir:        "/var/lib/kubelith",
		RunDir:         "/run/kubelith",
		KubeletRootDir: "/var/lib/kubelet",
		DefaultRuntime: oci.Runc,
		LogFormat:      "text",
		LogLevel:       "info",
		TraceMemory:    record.DefaultBytes >> 20,
		TraceAge:       "24h",
	}
}

func logFormats() []string { return []string{"text", "json"} }
func logLevels() []string  { return []string{"error", "warn", "info", "debug", "trace"} }

// Disabled reports whether the component with this name is switched off.
func (n *Node) Disabled(component string) bool { return slices.Contains(n.Disable, component) }

// Trace returns the bounds of the flight recorder; nil if it is switched off. TraceAge must be valid.
func (n *Node) Trace() *record.Options {
	if n.TraceMemory == 0 {
		return nil
	}
	age, _ := time.ParseDuration(n.TraceAge)
	return &record.Options{Bytes: int64(n.TraceMemory) << 20, Age: age}
}

// NodeIPs returns NodeIP parsed. The addresses must be valid.
func (n *Node) NodeIPs() []net.IP { return parsed(n.NodeIP) }

// ExternalIPs returns NodeExternalIP parsed. The addresses must be valid.
func (n *Node) ExternalIPs() []net.IP { return parsed(n.NodeExternalIP) }

func parsed(addresses []string) []net.IP {
	ips := make([]net.IP, 0, len(addresses))
	for _, ip := range addresses {
		ips = append(ips, net.ParseIP(ip))
	}
	return ips
}

// SocketDir is the run directory under a name that is short enough for unix sockets, and simple enough for the program
// of CNI to find one in JSON: itself, or a symbolic link to it in /run, which the node creates when it starts. The name
// follows from the path, so that every command finds it.
func (n *Node) SocketDir() string {
	if len(n.RunDir) <= maxRunDir && !strings.ContainsFunc(n.RunDir, escapedInJSON) {
		return n.RunDir
	}
	return fmt.Sprintf("/run/kubelith-%x", sha256.Sum256([]byte(filepath.Clean(n.RunDir))))[:maxRunDir]
}

// ContainerdSocket is where containerd serves its clients.
func (n *Node) ContainerdSocket() string {
	return filepath.Join(n.SocketDir(), "containerd", "containerd.sock")
}

// escapedInJSON reports whether encoding/json may write a character in another form.
func escapedInJSON(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) }

// paths returns the fields that are paths, by key.
func (n *Node) paths() map[string]*string {
	return map[string]*string{
		"dataDir":        &n.DataDir,
		"runDir":         &n.RunDir,
		"kubeletRootDir": &n.KubeletRootDir,
		"logFile":        &n.LogFile,
	}
}

// node implements settings.
func (n *Node) node() *Node { return n }
