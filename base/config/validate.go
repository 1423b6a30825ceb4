package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/runtime/oci"
)

// The longest paths, in bytes, of directories that hold sockets. sun_path in unix(7) holds 107 bytes.
const (
	// maxRunDir, see Node.SocketDir: a shim's socket is "/containerd/s/" and a SHA-256. A plugin's,
	// "/p/plugin-dirNNNNNNNNNN/pluginNNNNNNNNNN", is shorter.
	maxRunDir = 107 - 14 - 64
	// maxKubeletRootDir: our longest is "/plugins_registry/local.kubelith.io-reg.sock"; other drivers may have longer
	// ones.
	maxKubeletRootDir = 107 - 44
)

// Validate checks everything that can be known without the host and the upstream components. Every problem is one line
// that names the flag and the key in the file and says what to do; they are joined, so that the user can fix all at
// once.
func (s *Server) Validate() error {
	var p problems
	validateNode(&p, s)
	s.validateAddresses(&p)
	p.oneOf("network", s.Network, networks())
	p.oneOf("joinToken", s.JoinToken, joinTokens())
	if s.Profile != "" {
		p.oneOf("profile", s.Profile, profiles())
	}
	if s.Disabled("containerd") && !s.Disabled("kubelet") {
		p.add("disable", "the kubelet cannot run without containerd: disable both, as in --disable kubelet,containerd")
	}
	validatePlugins(&p, s.Plugins)
	s.validateSnapshots(&p)
	if s.Server != "" {
		validateJoin(&p, s.Server, s.Token, s.TokenFile)
	}
	if s.HTTPSPort < 1 || s.HTTPSPort > 65535 {
		p.add("httpsPort", "%d is not a port: use 1 to 65535", s.HTTPSPort)
	}
	return errors.Join(p...)
}

// validateSnapshots leaves the files and keys to the component that reads them.
func (s *Server) validateSnapshots(p *problems) {
	if _, err := cron.ParseStandard(s.SnapshotSchedule); err != nil && s.SnapshotSchedule != SnapshotsNever {
		p.add("snapshotSchedule", "%q is not a cron schedule (%v): write minute, hour, day, month and weekday, "+
			"as in \"0 */12 * * *\", or never", s.SnapshotSchedule, err)
	}
	if s.SnapshotRetention < 1 {
		p.add("snapshotRetention", "%d snapshots cannot be kept: use 1 or more, or switch them off with %s never",
			s.SnapshotRetention, label("snapshotSchedule"))
	}
	s.S3.validate(p)
	if s.SnapshotPassphraseFile != "" && len(s.SnapshotRecipients) > 0 {
		p.add("snapshotRecipients", "a snapshot is encrypted with a passphrase or for keys, not both: leave out this or %s",
			label("snapshotPassphraseFile"))
	}
}

// validateNode checks what servers and agents have in common, except the node's addresses.
func validateNode(p *problems, s settings) {
	n := s.node()
	validatePaths(p, s)
	n.validateRegistration(p)
	for _, name := range n.Disable {
		if !slices.Contains(s.disableable(), name) {
			p.add("disable", "%q is not a component that can be disabled%s", name, suggestion(name, s.disableable()))
		}
	}
	validateArgs(p, s)
	p.oneOf("defaultRuntime", n.DefaultRuntime, oci.All())
	p.oneOf("logFormat", n.LogFormat, logFormats())
	validateLevels(p, n.LogLevel)
	n.validateTrace(p)
}

// maxTraceMemory, in MiB, is far beyond what anybody reads, and its bytes are an int64.
const maxTraceMemory = 1 << 20

// validateTrace checks the settings of the flight recorder.
func (n *Node) validateTrace(p *problems) {
	if n.TraceMemory < 0 || n.TraceMemory > maxTraceMemory {
		p.add("traceMemory", "%d is not a size in MiB: use 1 to %d, or 0 to switch the flight recorder off", n.TraceMemory, maxTraceMemory)
	}
	if age, err := time.ParseDuration(n.TraceAge); err != nil || age < time.Minute {
		p.add("traceAge", "%q is not a duration of at least a minute: write it as in 90m or 24h", n.TraceAge)
	}
	if n.NetworkPolicyLog < 0 || n.NetworkPolicyLog > 1000 {
		p.add("networkPolicyLog", "%d is not a number of lines a second from 0 to 1000", n.NetworkPolicyLog)
	}
	if n.NetworkPolicyLog > 0 && (n.Disabled("network-policy") || n.Disabled("network")) {
		p.add("networkPolicyLog", "has nothing to log: network policies are switched off by %s", label("disable"))
	}
	if n.OTLPEndpoint == "" {
		return
	}
	switch u, err := url.Parse(n.OTLPEndpoint); {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		p.add("otlpEndpoint", "%q is not the URL of a collector: write http://HOST:4317, or https://HOST:4317 with TLS", n.OTLPEndpoint)
	case strings.Trim(u.Path, "/") != "":
		p.add("otlpEndpoint", "%q has a path, which OTLP by gRPC does not have: write %s://%s", n.OTLPEndpoint, u.Scheme, u.Host)
	case u.Port() == "":
		p.add("otlpEndpoint", "%q has no port: collectors usually listen on 4317, as in %s://%s:4317", n.OTLPEndpoint, u.Scheme, u.Host)
	case n.TraceMemory == 0:
		p.add("otlpEndpoint", "has nothing to export: the flight recorder is switched off by %s", label("traceMemory"))
	}
}

// validateLevels checks a level for all components and levels for some: info,kubelet=debug.
func validateLevels(p *problems, text string) {
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		component, level, ok := strings.Cut(part, "=")
		if !ok {
			component, level = "", part
		}
		if component != "" && !slices.Contains(logComponents(), component) {
			p.add("logLevel", "%q is not a component of the log%s", component, suggestion(component, logComponents()))
		}
		if seen[component] {
			p.add("logLevel", "%q sets two levels for the same component: set one", text)
		}
		seen[component] = true
		p.oneOf("logLevel", level, logLevels())
	}
}

// problems collects errors.
type problems []error

// add notes a problem of the setting with this key.
func (p *problems) add(key, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s: %s", label(key), fmt.Sprintf(format, args...)))
}

func (p *problems) oneOf(key, value string, known []string) {
	if !slices.Contains(known, value) {
		p.add(key, "unknown value %q%s", value, suggestion(value, known))
	}
}

func validatePaths(p *problems, s settings) {
	const tooLong = "%q is %d bytes long and holds unix sockets: use a path of at most %d bytes"
	mayBeEmpty := []string{
		"tokenFile", "logFile", "snapshotDir", "snapshotPassphraseFile", "snapshotS3CredentialsFile", "snapshotS3CAFile",
	}
	paths := s.paths()
	for _, key := range slices.Sorted(maps.Keys(paths)) {
		path := *paths[key]
		switch {
		case path == "" && slices.Contains(mayBeEmpty, key):
		case path == "":
			p.add(key, "is empty: give it a path")
		case !filepath.IsAbs(path):
			p.add(key, "%q is not an absolute path: begin it with /", path)
		case filepath.Clean(path) == "/":
			p.add(key, "cannot be the root directory: use a separate directory")
		case key == "kubeletRootDir" && len(path) > maxKubeletRootDir:
			p.add(key, tooLong, path, len(path), maxKubeletRootDir)
		}
	}
	dirs := []string{"dataDir", "kubeletRootDir", "runDir"}
	for i, a := range dirs {
		for _, b := range dirs[i+1:] {
			x, y := *paths[a], *paths[b]
			switch {
			case strings.Trim(x, "/") == "" || strings.Trim(y, "/") == "": // refused above
			case filepath.Clean(x) == filepath.Clean(y):
				p.add(b, "is the same directory as %s: name another one", label(a))
			case inside(x, y):
				p.add(b, "%q is in %q, the directory of %s: name one beside it", y, x, label(a))
			case inside(y, x):
				p.add(a, "%q is in %q, the directory of %s: name one beside it", x, y, label(b))
			}
		}
	}
}

func inside(dir, path string) bool {
	return strings.HasPrefix(filepath.Clean(path), strings.TrimSuffix(filepath.Clean(dir), "/")+"/")
}

// validateRegistration checks the settings with which the node registers.
func (n *Node) validateRegistration(p *problems) {
	// 63 because the name becomes the value of the label kubernetes.io/hostname.
	if errs := validation.IsDNS1123Subdomain(n.NodeName); len(errs) > 0 || len(n.NodeName) > 63 {
		p.add("nodeName", "%q cannot be a node's name: use at most 63 lower-case letters, digits, '-' and '.', "+
			"beginning and ending with a letter or digit", n.NodeName)
	}
	for _, l := range n.NodeLabels {
		key, value, ok := strings.Cut(l, "=")
		switch {
		case !ok:
			p.add("nodeLabels", "%q is not a label: write KEY=VALUE", l)
		case len(content.IsLabelKey(key)) > 0:
			p.add("nodeLabels", "%q has no valid label key: %s", l, content.IsLabelKey(key)[0])
		case len(content.IsLabelValue(value)) > 0:
			p.add("nodeLabels", "%q has no valid label value: %s", l, content.IsLabelValue(value)[0])
		case ownLabel(key):
			p.add("nodeLabels", "kubelith sets the label %q itself: use another key", key)
		case reserved(key):
			p.add("nodeLabels", "a node may not set the label %q on itself: set it with kubectl label node, or use another prefix", key)
		}
	}
	for _, t := range n.NodeTaints {
		if why := checkTaint(t); why != "" {
			p.add("nodeTaints", "%q is not a taint (%s): write KEY=VALUE:NoSchedule, KEY:NoSchedule, "+
				"or the same with PreferNoSchedule or NoExecute", t, why)
		}
	}
}

// ownLabel reports whether the node sets the label with this key.
func ownLabel(key string) bool {
	return key == names.RoleLabel || key == names.MachineLabel || strings.HasPrefix(key, names.RuntimeLabel)
}

// reserved reports whether a label with this key would make the kubelet fail
// (k8s.io/kubernetes/cmd/kubelet/app/options, ValidateKubeletFlags).
func reserved(key string) bool {
	prefix, _, ok := strings.Cut(key, "/")
	if !ok {
		return false
	}
	for _, domain := range []string{"kubernetes.io", "k8s.io"} {
		if prefix == domain || strings.HasSuffix(prefix, "."+domain) {
			return !kubeletapis.IsKubeletLabel(key)
		}
	}
	return false
}

// checkTaint returns the error in a taint, or "".
func checkTaint(t string) string {
	rest, effect, ok := strings.Cut(t, ":")
	if !ok {
		return "it has no effect"
	}
	if !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, effect) {
		return fmt.Sprintf("unknown effect %q", effect)
	}
	key, value, _ := strings.Cut(rest, "=")
	if errs := content.IsLabelKey(key); len(errs) > 0 {
		return "key: " + errs[0]
	}
	if errs := content.IsLabelValue(value); len(errs) > 0 {
		return "value: " + errs[0]
	}
	return ""
}

// validateArgs checks the form of the arguments for upstream components.
func validateArgs(p *problems, s settings) {
	for _, f := range fields(s) {
		key := f.key
		args, _ := f.in(s).Interface().(Args)
		for _, a := range args {
			name, _, ok := strings.Cut(a, "=")
			switch {
			case strings.HasPrefix(a, "-"):
				p.add(key, "%q begins with a dash: write %q", a, strings.TrimLeft(a, "-"))
			case !ok && name != "":
				p.add(key, "%q has no value: write %q, or %q if it is a switch", a, a+"=VALUE", a+"=true")
			case name == "" || strings.ContainsAny(name, " \t\n"):
				p.add(key, "%q is not of the form KEY=VALUE", a)
			}
		}
	}
}
