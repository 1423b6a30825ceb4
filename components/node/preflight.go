package node

import (
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/datadir"
	"kubelith.io/kubelith/components/dns"
	"kubelith.io/kubelith/components/host"
	"kubelith.io/kubelith/components/kubelet"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/pki"
	"kubelith.io/kubelith/components/proxy"
	"kubelith.io/kubelith/runtime/cgroups"
	"kubelith.io/kubelith/runtime/cni"
)

// Preflight checks the upstream arguments, and this host for what the configuration is going to run.
func Preflight(ctx context.Context, cfg *config.Server) []host.Result {
	_, components, err := plan(cfg)
	if err != nil {
		components = planWithoutWrong(cfg)
	}
	results := slices.Concat(argumentResults(err), host.Check(ctx, checkOptions(cfg, components)), pluginResults(cfg))
	return append(results, directoryResult(&cfg.Node, datadir.CheckCluster(cfg.DataDir), datadir.CheckSettings(cfg.DataDir, fixedSettings(cfg))))
}

// directoryResult says whether the node could take its directories. others are what else is known of them.
func directoryResult(cfg *config.Node, others ...error) host.Result {
	kubeletRoot := cfg.KubeletRootDir
	if cfg.Disabled("kubelet") {
		kubeletRoot = ""
	}
	for _, err := range append(others, datadir.Examine(cfg.DataDir, cfg.RunDir, kubeletRoot)) {
		if err != nil {
			return host.Result{Name: "directories", Status: host.Fail, Message: err.Error()}
		}
	}
	return host.Result{Name: "directories", Status: host.OK, Message: "new, or this node's"}
}

// PreflightArguments checks the upstream arguments of a configuration that has other faults.
func PreflightArguments(cfg *config.Server) []host.Result {
	sound := config.Default()
	sound.NodeName, sound.NodeIP, sound.AdvertiseAddress = "node", []string{"127.0.0.1"}, "127.0.0.1"
	for i, args := range argumentLists(cfg) {
		*argumentLists(sound)[i] = *args
	}
	_, _, err := plan(sound)
	return argumentResults(err)
}

func argumentLists(cfg *config.Server) []*config.Args {
	return []*config.Args{&cfg.EtcdArgs, &cfg.APIServerArgs, &cfg.ControllerManagerArgs, &cfg.SchedulerArgs, &cfg.KubeletArgs, &cfg.ProxyArgs}
}

// planWithoutWrong builds the components without those lists of arguments that are wrong, so that ports are known.
func planWithoutWrong(cfg *config.Server) []lifecycle.Component {
	none := *cfg
	for _, args := range argumentLists(&none) {
		*args = nil
	}
	right := *cfg
	for i, args := range argumentLists(&right) {
		alone := none
		*argumentLists(&alone)[i] = *args
		if _, _, err := plan(&alone); err != nil {
			*args = nil
		}
	}
	_, components, err := plan(&right)
	if err != nil { // each is right, but not all together
		_, components, _ = plan(&none)
	}
	return components
}

// argumentResults has a line for each problem of the upstream arguments, or says that there is none.
func argumentResults(err error) []host.Result {
	if err == nil {
		return []host.Result{{Name: "arguments", Status: host.OK, Message: "understood"}}
	}
	var wrong []host.Result
	for _, line := range strings.Split(err.Error(), "\n") {
		wrong = append(wrong, host.Result{Name: "arguments", Status: host.Fail, Message: line})
	}
	return wrong
}

// plan builds the components once without credentials, which checks their arguments and tells their ports.
func plan(cfg *config.Server) (upstreamArgs, []lifecycle.Component, error) {
	arguments, err := applyGates(cfg)
	if err != nil {
		return upstreamArgs{}, nil, err
	}
	components, err := server(cfg, &machine{pki: &pki.Bundle{}, args: arguments}, silent())
	return arguments, components, err
}

func silent() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// checkOptions say what the components of a server need of this host.
func checkOptions(cfg *config.Server, components []lifecycle.Component) host.CheckOptions {
	opts := nodeCheckOptions(&cfg.Node, cfg.ClusterInfo("", ""), tlsDir(cfg))
	opts.Ports = ports(cfg, components)
	return opts
}

// nodeCheckOptions are without ports. caDir has the certificate of the cluster's CA, if there is one yet.
func nodeCheckOptions(cfg *config.Node, cluster *config.ClusterInfo, caDir string) host.CheckOptions {
	containers := !cfg.Disabled("containerd")
	opts := host.CheckOptions{
		DataDir:      cfg.DataDir,
		NodeName:     cfg.NodeName,
		Containers:   containers,
		CgroupDriver: cgroups.DetectCgroupDriver(),
		Proxy:        !cfg.Disabled("proxy"),
		Bridge:       containers && !cfg.Disabled("network") && cniMode(cluster.Network) == cni.Bridge,
		ServiceIPs:   addresses(cluster.ClusterDNS),
		NotBefore:    buildTime(),
		NotBeforeOf:  "this program was built at",
	}
	if ca, from := pki.ValidFrom(caDir); from.After(opts.NotBefore) {
		opts.NotBefore, opts.NotBeforeOf = from, ca+" is valid from"
	}
	return opts
}

// settle is how long a port may take to become free: that of a server which
// ends at this moment.
const settle = 3 * time.Second

// settledPreflight checks again while nothing but ports in use fail.
func settledPreflight(ctx context.Context, opts host.CheckOptions) []host.Result {
	for deadline := time.Now().Add(settle); ; {
		results := host.Check(ctx, opts)
		failed, busy := 0, 0
		for _, r := range results {
			if r.Status == host.Fail {
				failed++
				if r.IsPort() {
					busy++
				}
			}
		}
		if busy == 0 || failed > busy || time.Now().After(deadline) || ctx.Err() != nil {
			return results
		}
		time.Sleep(settle / 10)
	}
}

// ports are those that a server listens on.
func ports(cfg *config.Server, components []lifecycle.Component) []host.Port {
	api := host.Port{Component: "apiserver", Network: "tcp", Address: cfg.BindAddress, Number: cfg.HTTPSPort, Setting: "--https-port"}
	return append([]host.Port{api}, nodePorts(components)...)
}

// nodePorts are those that servers and agents listen on.
func nodePorts(components []lifecycle.Component) []host.Port {
	var all []host.Port
	tcp := func(component, address string, port int, setting string) {
		if port != 0 {
			all = append(all, host.Port{Component: component, Network: "tcp", Address: address, Number: port, Setting: setting})
		}
	}
	for _, c := range components {
		switch c := c.(wired).Component.(type) {
		case *kubelet.Server:
			up := c.Upstream()
			tcp("kubelet", up.Address, int(up.Port), "--kubelet-arg=port=N")
			tcp("kubelet", up.HealthzBindAddress, int(up.HealthzPort), "--kubelet-arg=healthz-port=N")
			tcp("kubelet", up.Address, int(up.ReadOnlyPort), "--kubelet-arg=read-only-port=N")
		case *proxy.Server:
			address, port, _ := net.SplitHostPort(c.HealthzAddress()) // upstream has checked its form
			number, _ := strconv.Atoi(port)
			tcp("proxy", address, number, "--proxy-arg=healthz-bind-address=ADDRESS:N")
		case *dns.Server:
			for _, address := range c.Addresses() {
				tcp("dns", address, dns.DefaultPort, "")
				all = append(all, host.Port{Component: "dns", Network: "udp", Address: address, Number: dns.DefaultPort})
			}
		}
	}
	return all
}

// buildTime is a moment that the clock must have passed: the date of the
// source that this executable was built from; zero when it is not known.
func buildTime() time.Time {
	t, err := time.Parse(time.RFC3339, version.Get().BuildDate)
	if err != nil {
		return time.Time{}
	}
	return t
}
