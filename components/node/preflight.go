package node

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/worker/cni"
	"kubelith.io/kubelith/components/worker/network"
	"kubelith.io/kubelith/components/worker/policy/kernel"
	"kubelith.io/kubelith/host/preflight"
	"kubelith.io/kubelith/runtime/cgroups"
)

// Preflight checks the upstream arguments, and whether this host can run what is configured.
func Preflight(ctx context.Context, cfg *config.Server) []preflight.Result {
	var wrong error
	if !joinsAnew(cfg) {
		wrong = adoptStored(cfg)
	}
	if cfg.Witness {
		return preflightWitness(ctx, cfg, wrong)
	}
	_, components, err := plan(cfg)
	if err != nil {
		components = planWithoutWrong(cfg)
	}
	opts := checkOptions(cfg, components)
	opts.Syncs = true // here only: a start takes no longer for it
	results := slices.Concat(argumentResults(err), preflight.Check(ctx, opts), pluginResults(cfg), virtualAddressResults(ctx, cfg))
	return append(results, directoryResult(&cfg.Node, wrong,
		datadir.CheckCluster(cfg.DataDir), datadir.CheckSettings(cfg.DataDir, fixedSettings(cfg))))
}

// directoryResult reports whether the node could use its directories. others are further errors.
func directoryResult(cfg *config.Node, others ...error) preflight.Result {
	kubeletRoot := cfg.KubeletRootDir
	if cfg.Disabled("kubelet") {
		kubeletRoot = ""
	}
	for _, err := range append(others, datadir.Examine(cfg.DataDir, cfg.RunDir, kubeletRoot)) {
		if err != nil {
			return preflight.Result{Name: "directories", Status: preflight.Fail, Message: err.Error()}
		}
	}
	return preflight.Result{Name: "directories", Status: preflight.OK, Message: "new, or this node's"}
}

// PreflightArguments checks the upstream arguments of a configuration that has other errors.
func PreflightArguments(cfg *config.Server) []preflight.Result {
	sound := config.Default()
	sound.NodeName, sound.NodeIP, sound.AdvertiseAddress = "node", []string{"127.0.0.1"}, "127.0.0.1"
	for i, args := range argumentLists(cfg) {
		*argumentLists(sound)[i] = *args
	}
	_, _, err := plan(sound)
	return argumentResults(err)
}

func argumentLists(cfg *config.Server) []*config.Args {
	return []*config.Args{
		&cfg.EtcdArgs, &cfg.APIServerArgs, &cfg.ControllerManagerArgs, &cfg.SchedulerArgs, &cfg.KubeletArgs, &cfg.ProxyArgs,
	}
}

// planWithoutWrong builds the components without the lists of arguments that are wrong, so that ports are known.
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
	if err != nil { // each list is valid, but not all together
		_, components, _ = plan(&none)
	}
	return components
}

// argumentResults returns a line for each wrong upstream argument, or one line if all are right.
func argumentResults(err error) []preflight.Result {
	if err == nil {
		return []preflight.Result{{Name: "arguments", Status: preflight.OK, Message: "understood"}}
	}
	var wrong []preflight.Result
	for _, line := range strings.Split(err.Error(), "\n") {
		wrong = append(wrong, preflight.Result{Name: "arguments", Status: preflight.Fail, Message: line})
	}
	return wrong
}

// plan builds the components once without credentials, to check their arguments and find their ports.
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

// checkOptions returns what the components of a server need of this host.
func checkOptions(cfg *config.Server, components []lifecycle.Component) preflight.Options {
	opts := nodeCheckOptions(&cfg.Node, cfg.ClusterInfo("", ""), tlsDir(cfg))
	opts.Ports = ports(components)
	opts.AnyUser = !cfg.NeedsRoot()
	return opts
}

// nodeCheckOptions returns options without ports. caDir has the certificate of the cluster's CA, if there is one yet.
func nodeCheckOptions(cfg *config.Node, cluster *config.ClusterInfo, caDir string) preflight.Options {
	containers := !cfg.Disabled("containerd")
	opts := preflight.Options{
		DataDir:        cfg.DataDir,
		NodeName:       cfg.NodeName,
		Containers:     containers,
		CgroupDriver:   cgroups.DetectCgroupDriver(),
		DefaultRuntime: cfg.DefaultRuntime,
		Proxy:          !cfg.Disabled("proxy"),
		Bridge:         containers && !cfg.Disabled("network") && cniMode(cluster.Network) == cni.Bridge,
		WireGuard:      !cfg.Disabled("network") && network.Backend(cluster.Network) == network.WireGuard,
		ServiceIPs:     cluster.DNSIPs(),
		NotBefore:      buildTime(),
		NotBeforeOf:    "this program was built at",
	}
	if opts.Bridge && !cfg.Disabled("network-policy") {
		opts.PolicyRules, opts.PolicyLog = kernel.Probe(), cfg.NetworkPolicyLog > 0
	}
	if ca, from := pki.ValidFrom(caDir); from.After(opts.NotBefore) {
		opts.NotBefore, opts.NotBeforeOf = from, ca+" is valid from"
	}
	return opts
}

// ports are those that components listen on.
func ports(components []lifecycle.Component) (all []preflight.Port) {
	for _, c := range components {
		if l, ok := c.(wired).Component.(lifecycle.Listener); ok {
			for _, port := range l.Ports() {
				all = append(all, preflight.Port{Component: c.Name(), Port: port})
			}
		}
	}
	return all
}

// buildTime is a time that the clock must be past: the date of the source that this executable was built from; zero
// when it is not known.
func buildTime() time.Time {
	t, err := time.Parse(time.RFC3339, version.Get().BuildDate)
	if err != nil {
		return time.Time{}
	}
	return t
}
