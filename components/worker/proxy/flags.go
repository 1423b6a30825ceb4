package proxy

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/kube-proxy/config/v1alpha1"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	proxyscheme "k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	"k8s.io/kubernetes/pkg/proxy/apis/config/validation"
	utilflag "k8s.io/kubernetes/pkg/util/flag"

	"kubelith.io/kubelith/base/args"
	"kubelith.io/kubelith/base/names"
)

// option is the option with which users set upstream's flags.
const option = "--proxy-arg"

// configure builds upstream's configuration from its defaults, our options and the user's flags.
func configure(o Options) (*kubeproxyconfig.KubeProxyConfiguration, *rest.Config, error) {
	versioned := &v1alpha1.KubeProxyConfiguration{}
	proxyscheme.Scheme.Default(versioned)
	internal, err := proxyscheme.Scheme.ConvertToVersion(versioned, kubeproxyconfig.SchemeGroupVersion)
	if err != nil {
		return nil, nil, fmt.Errorf("proxy: defaults: %w", err)
	}
	c := internal.(*kubeproxyconfig.KubeProxyConfiguration)
	c.Mode = kubeproxyconfig.ProxyModeNFTables
	c.DetectLocalMode = kubeproxyconfig.LocalModeClusterCIDR
	c.DetectLocal.ClusterCIDRs = o.ClusterCIDRs
	c.HealthzBindAddress = net.JoinHostPort("0.0.0.0", strconv.Itoa(names.ProxyHealthPort))
	c.NodePortAddresses = []string{kubeproxyconfig.NodePortAddressesPrimary}
	client := rest.CopyConfig(o.Client)

	fs := flags(c, client)
	if err := args.ApplyTo(option, fs, refused(), o.Args); err != nil {
		return nil, nil, err
	}
	if fs.Changed("kube-api-burst") && !fs.Changed("kube-api-qps") {
		return nil, nil, fmt.Errorf("%s kube-api-burst: has no effect without kube-api-qps, because there is no limit then: set both", option)
	}
	if c.Mode != kubeproxyconfig.ProxyModeNFTables {
		return nil, nil, fmt.Errorf("%s proxy-mode: only nftables is built in, not %q", option, c.Mode)
	}
	if c.DetectLocalMode == kubeproxyconfig.LocalModeNodeCIDR {
		return nil, nil, fmt.Errorf("%s detect-local-mode: NodeCIDR cannot be used: use ClusterCIDR, BridgeInterface or InterfaceNamePrefix", option)
	}
	if errs := validation.Validate(c); len(errs) > 0 {
		return nil, nil, fmt.Errorf("%s: %w", option, errs.ToAggregate())
	}
	return c, client, nil
}

// flags are upstream's flags that have the same effect here. Upstream's own flag set is bound to an unexported
// configuration; a test compares the two.
func flags(c *kubeproxyconfig.KubeProxyConfiguration, client *rest.Config) *pflag.FlagSet {
	fs := pflag.NewFlagSet(option, pflag.ContinueOnError)
	fs.Var(&c.Mode, "proxy-mode", "")
	fs.BoolVar(&c.Linux.MasqueradeAll, "masquerade-all", c.Linux.MasqueradeAll, "")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses, "")
	fs.Var(&utilflag.IPPortVar{Val: &c.HealthzBindAddress}, "healthz-bind-address", "")
	fs.Var(&c.DetectLocalMode, "detect-local-mode", "")
	fs.StringSliceVar(&c.DetectLocal.ClusterCIDRs, "cluster-cidr", c.DetectLocal.ClusterCIDRs, "")
	fs.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", c.DetectLocal.BridgeInterface, "")
	fs.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", c.DetectLocal.InterfaceNamePrefix, "")
	// Despite their names upstream uses these two in nftables mode as well.
	fs.DurationVar(&c.SyncPeriod.Duration, "iptables-sync-period", c.SyncPeriod.Duration, "")
	fs.DurationVar(&c.MinSyncPeriod.Duration, "iptables-min-sync-period", c.MinSyncPeriod.Duration, "")
	fs.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration, "")

	ct := &c.Linux.Conntrack // its pointers are set by upstream's defaults
	fs.Int32Var(ct.MaxPerCore, "conntrack-max-per-core", *ct.MaxPerCore, "")
	fs.Int32Var(ct.Min, "conntrack-min", *ct.Min, "")
	fs.DurationVar(&ct.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", ct.TCPEstablishedTimeout.Duration, "")
	fs.DurationVar(&ct.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", ct.TCPCloseWaitTimeout.Duration, "")
	fs.BoolVar(&ct.TCPBeLiberal, "conntrack-tcp-be-liberal", ct.TCPBeLiberal, "")
	fs.DurationVar(&ct.UDPTimeout.Duration, "conntrack-udp-timeout", ct.UDPTimeout.Duration, "")
	fs.DurationVar(&ct.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", ct.UDPStreamTimeout.Duration, "")

	fs.Float32Var(&client.QPS, "kube-api-qps", client.QPS, "")
	fs.IntVar(&client.Burst, "kube-api-burst", client.Burst, "")
	return fs
}

// refused are upstream's other flags, with the reason.
func refused() args.Refused {
	const (
		metrics  = "the metrics of the whole process are served in one place"
		inside   = "the component reaches the apiserver inside of the process"
		mode     = "it belongs to another proxy mode"
		noAction = "it would make kube-proxy exit at once"
	)
	own := args.Refused{
		"config":                          "give the settings as arguments",
		"write-config-to":                 noAction,
		"cleanup":                         noAction + "; kubelith reset removes the rules",
		"init-only":                       noAction,
		"kubeconfig":                      inside,
		"master":                          inside,
		"kube-api-content-type":           inside,
		"hostname-override":               "use --node-name",
		"bind-address":                    "use --node-ip",
		"bind-address-hard-fail":          "it is always on",
		"metrics-bind-address":            metrics,
		"metrics-port":                    metrics,
		"profiling":                       metrics,
		"show-hidden-metrics-for-version": metrics,
		"healthz-port":                    "it is deprecated, use healthz-bind-address",
		"oom-score-adj":                   "the process has one score: set it in the service unit",
		"iptables-masquerade-bit":         mode,
		"iptables-localhost-nodeports":    mode,
	}
	const ipvs = "ipvs-sync-period ipvs-min-sync-period ipvs-scheduler ipvs-exclude-cidrs ipvs-strict-arp " +
		"ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout"
	for _, f := range strings.Fields(ipvs) {
		own[f] = mode
	}
	return args.Merge(args.Logging(), args.FeatureGates(), own)
}
