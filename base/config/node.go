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
	DataDir        string `json:"dataDir" flag:"data-dir"`
	RunDir         string `json:"runDir" flag:"run-dir"`
	KubeletRootDir string `json:"kubeletRootDir" flag:"kubelet-root-dir"`

	// Labels and taints of an existing Node are not changed.
	NodeIP []string `json:"nodeIP" flag:"node-ip"`
	// NodeIPDetected: NodeIP was detected on the host at the start, and is updated when the host's addresses change. An
	// address that a user has set is not.
	NodeIPDetected bool `json:"-"`
	// NodeExternalIP is what the node claims; the server decides (components/cluster/approver).
	NodeExternalIP []string `json:"nodeExternalIP" flag:"node-external-ip"`

	NodeName   string   `json:"nodeName" flag:"node-name"`
	NodeLabels []string `json:"nodeLabels" flag:"node-label"`
	NodeTaints []string `json:"nodeTaints" flag:"node-taint"`

	// DefaultRuntime starts the containers of pods without a runtimeClassName.
	DefaultRuntime string `json:"defaultRuntime" flag:"default-runtime"`

	// Components that do not run; the help adds the names that a server or an agent accepts.
	Disable []string `json:"disable" flag:"disable"`

	// What network policies drop is logged by the component network-policy.
	NetworkPolicyLog int `json:"networkPolicyLog" flag:"network-policy-log"`

	// The log, of all components.
	LogFormat string `json:"logFormat" flag:"log-format"`
	LogLevel  string `json:"logLevel" flag:"log-level"`
	LogFile   string `json:"logFile" flag:"log-file"`

	// The flight recorder, see docs/trace.md. TraceAge is a duration as Go writes it; OTLPEndpoint is the URL of a
	// collector.
	TraceMemory  int    `json:"traceMemory" flag:"trace-memory"`
	TraceAge     string `json:"traceAge" flag:"trace-age"`
	OTLPEndpoint string `json:"otlpEndpoint" flag:"otlp-endpoint"`

	// Flags of upstream's programs without their dashes; the last of a key wins where upstream takes one value.
	KubeletArgs Args `json:"kubeletArgs" flag:"kubelet-arg"`
	ProxyArgs   Args `json:"proxyArgs" flag:"proxy-arg"`
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
