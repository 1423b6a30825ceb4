package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/configfiles"
	"k8s.io/kubernetes/pkg/util/filesystem"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/base/args"
)

// given replaces the path of a kubeconfig, which upstream requires: an empty one would mean standalone mode and drop
// our clients. It is never opened.
const given = "given"

// resolvConfDefault is upstream's default.
const resolvConfDefault = "/etc/resolv.conf"

// configArg is the one argument that is not a flag here: it names a file with a KubeletConfiguration, to which
// everything else is applied.
const configArg = "config"

// upstreamServer translates Options into upstream's flags and configuration
// and applies the user's arguments on top.
func upstreamServer(o Options) (*options.KubeletServer, error) {
	f := options.NewKubeletFlags()
	file, arguments := configFile(o.Args)
	c, err := baseConfig(file, o)
	if err != nil {
		return nil, err
	}
	// First: defining the flags resets some fields to the flags' own defaults.
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	f.AddFlags(fs)
	options.AddKubeletConfigFlags(fs, c)
	setFlags(f, o)
	setConfig(c, o)
	if err := args.ApplyTo("--kubelet-arg", fs, Refused(), arguments); err != nil {
		return nil, err
	}
	if o.ExternalIPs && slices.ContainsFunc(arguments, isCloudProvider) {
		return nil, errors.New("--kubelet-arg cloud-provider: a cloud provider sets the addresses of the Node, " +
			"and so does --node-external-ip (nodeExternalIP): use only one of them")
	}
	if err := checkFiles(f); err != nil {
		return nil, err
	}
	if err := options.ValidateKubeletFlags(f); err != nil {
		return nil, fmt.Errorf("--kubelet-arg: %w", err)
	}
	if err := validation.ValidateKubeletConfiguration(c, utilfeature.DefaultFeatureGate); err != nil {
		return nil, fmt.Errorf("--kubelet-arg: %w", err)
	}
	return &options.KubeletServer{KubeletFlags: *f, KubeletConfiguration: *c}, nil
}

// external is upstream's name of a cloud provider that is another process.
const external = "external"

// isCloudProvider reports whether an argument "key=value" names a cloud provider.
func isCloudProvider(argument string) bool {
	key, _, _ := strings.Cut(argument, "=")
	return strings.ReplaceAll(strings.TrimLeft(key, "-"), "_", "-") == "cloud-provider"
}

// configFile takes the last "config=FILE" out of the arguments.
func configFile(arguments []string) (file string, rest []string) {
	for _, kv := range arguments {
		if key, value, _ := strings.Cut(kv, "="); strings.TrimLeft(key, "-") == configArg {
			file = value
			continue
		}
		rest = append(rest, kv)
	}
	return file, rest
}

// baseConfig is upstream's default configuration, or the one in a file.
func baseConfig(file string, o Options) (*kubeletconfig.KubeletConfiguration, error) {
	if file == "" {
		c, err := options.NewKubeletConfiguration()
		if err != nil {
			return nil, err
		}
		// Upstream's defaults for flags are the old, open ones; these are those of its configuration file.
		c.Authentication.Anonymous.Enabled = false
		c.Authentication.Webhook.Enabled = true
		c.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
		c.ReadOnlyPort = 0
		c.FailSwapOn = false
		// Upstream's default is no profile for a pod that requests none.
		c.SeccompDefault = true
		if o.inProcess() {
			// Upstream's default is a watch for each ConfigMap and Secret. A pod waits until its watch has begun, which
			// takes over a second on a busy server, and then another half. A GET, once a minute and pod, takes a
			// millisecond.
			c.ConfigMapAndSecretChangeDetectionStrategy = kubeletconfig.TTLCacheChangeDetectionStrategy
		}
		// Upstream's default is to end pods like the machine's other processes: all at once.
		c.ShutdownGracePeriod.Duration = o.ShutdownGrace
		c.ShutdownGracePeriodCriticalPods.Duration = criticalShare(o.ShutdownGrace)
		return c, nil
	}
	loader, err := configfiles.NewFsLoader(&filesystem.DefaultFs{}, file)
	if err != nil {
		return nil, fmt.Errorf("--kubelet-arg config: %w", err)
	}
	c, err := loader.Load(context.Background())
	if err != nil {
		return nil, fmt.Errorf("--kubelet-arg config: %w", err)
	}
	if err := checkOwned(file, o); err != nil {
		return nil, fmt.Errorf("--kubelet-arg config: %s: %w", file, err)
	}
	if len(c.FeatureGates) > 0 {
		return nil, fmt.Errorf("--kubelet-arg config: %s: featureGates: %s: use --kubelet-arg=feature-gates=NAME=true", file, args.FeatureGates()["feature-gates"])
	}
	return c, nil
}

// checkOwned refuses a file with another value for a field that Kubelith sets. It reads the file itself: in the loaded
// configuration a default cannot be distinguished from a value.
func checkOwned(file string, o Options) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var c kubeletconfigv1beta1.KubeletConfiguration
	if err := yaml.Unmarshal(text, &c); err != nil {
		return err
	}
	endpoint := "unix://" + o.CRISocket
	for _, owned := range []struct{ key, flag, given, ours string }{
		{"clusterDomain", "cluster-domain", c.ClusterDomain, o.ClusterDomain},
		{"cgroupDriver", "cgroup-driver", c.CgroupDriver, o.CgroupDriver},
		{"containerRuntimeEndpoint", "container-runtime-endpoint", c.ContainerRuntimeEndpoint, endpoint},
		{"imageServiceEndpoint", "image-service-endpoint", c.ImageServiceEndpoint, endpoint},
		{"tlsCertFile", "tls-cert-file", c.TLSCertFile, o.Serving.Cert},
		{"tlsPrivateKeyFile", "tls-private-key-file", c.TLSPrivateKeyFile, o.Serving.Key},
		{"authentication.x509.clientCAFile", "client-ca-file", c.Authentication.X509.ClientCAFile, o.ClientCA},
	} {
		if owned.given != "" && owned.given != owned.ours {
			return fmt.Errorf("%s: cannot be set: %s", owned.key, Refused()[owned.flag])
		}
	}
	return nil
}

// checkFiles checks the files of flags for which upstream ends the process when they are missing.
func checkFiles(f *options.KubeletFlags) error {
	if f.ImageCredentialProviderConfigPath == "" && f.ImageCredentialProviderBinDir == "" {
		return nil
	}
	for flag, path := range map[string]string{
		"image-credential-provider-config":  f.ImageCredentialProviderConfigPath,
		"image-credential-provider-bin-dir": f.ImageCredentialProviderBinDir,
	} {
		if path == "" {
			return fmt.Errorf("--kubelet-arg %s: is missing: set image-credential-provider-config and image-credential-provider-bin-dir together", flag)
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("--kubelet-arg %s: %w: correct the path", flag, err)
		}
	}
	return nil
}

// setFlags sets what upstream has only as flags.
func setFlags(f *options.KubeletFlags, o Options) {
	f.KubeConfig = given
	f.HostnameOverride = o.NodeName
	f.RootDirectory = o.RootDir
	f.CertDirectory = o.CertDir
	ips := make([]string, len(o.NodeIPs))
	for i, ip := range o.NodeIPs {
		ips[i] = ip.String()
	}
	f.NodeIP = strings.Join(ips, ",")
	if o.ExternalIPs {
		f.CloudProvider = external
	}
	f.NodeLabels = map[string]string{}
	for _, l := range o.Labels {
		key, value, _ := strings.Cut(l, "=")
		f.NodeLabels[key] = value
	}
}

// setConfig sets the fields that Kubelith decides, and defaults for missing ones.
func setConfig(c *kubeletconfig.KubeletConfiguration, o Options) {
	for _, t := range o.Taints {
		c.RegisterWithTaints = append(c.RegisterWithTaints, taint(t))
	}
	c.ContainerRuntimeEndpoint = "unix://" + o.CRISocket
	c.CgroupDriver = o.CgroupDriver
	c.FailCgroupV1 = false // such hosts exist, and work
	c.ClusterDomain = o.ClusterDomain
	if len(c.ClusterDNS) == 0 {
		for _, ip := range o.ClusterDNS {
			c.ClusterDNS = append(c.ClusterDNS, ip.String())
		}
	}
	if c.ResolverConfig == "" || c.ResolverConfig == resolvConfDefault {
		c.ResolverConfig = o.ResolvConf
	}
	if c.StaticPodPath == "" {
		c.StaticPodPath = o.StaticPodDir
	}
	if c.EvictionHard == nil {
		c.EvictionHard = eviction.DefaultEvictionHard
	}
	c.TLSCertFile, c.TLSPrivateKeyFile = o.Serving.Cert, o.Serving.Key
	c.ServerTLSBootstrap = o.requestsServing()
	limitPIDs(c)
	c.Authentication.X509.ClientCAFile = o.ClientCA
}

// taint parses "key[=value]:effect", whose format the configuration has checked.
func taint(s string) corev1.Taint {
	keyValue, effect, _ := strings.Cut(s, ":")
	key, value, _ := strings.Cut(keyValue, "=")
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
}

// Refused are the upstream flags that Kubelith sets itself or does not use.
func Refused() args.Refused {
	use := func(flag string) string { return "use Kubelith's own --" + flag }
	client := "the kubelet uses a client that Kubelith creates"
	runtime := "containerd is part of the process"
	return args.Merge(args.Logging(), args.FeatureGates(), args.Refused{
		"kubeconfig":                        client,
		"bootstrap-kubeconfig":              client,
		"kube-api-qps":                      client,
		"kube-api-burst":                    client,
		"kube-api-content-type":             client,
		"rotate-certificates":               client,
		"rotate-server-certificates":        "Kubelith generates and renews it",
		"config-dir":                        "give one file, with --kubelet-arg=config=FILE",
		"hostname-override":                 use("node-name"),
		"node-ip":                           use("node-ip"),
		"node-labels":                       use("node-label"),
		"register-with-taints":              use("node-taint"),
		"root-dir":                          use("kubelet-root-dir"),
		"cluster-domain":                    use("cluster-domain"),
		"container-runtime-endpoint":        runtime,
		"image-service-endpoint":            runtime,
		"tls-cert-file":                     "Kubelith generates and renews it",
		"tls-private-key-file":              "Kubelith generates and renews it",
		"client-ca-file":                    "Kubelith generates and renews it",
		"cert-dir":                          "Kubelith generates and renews it",
		"pod-cidr":                          "the Node object has it",
		"cgroup-driver":                     "containerd and the kubelet use the one that was detected",
		"hairpin-mode":                      "upstream ignores it: it is in the CNI configuration",
		"runonce":                           "upstream ignores it",
		"streaming-connection-idle-timeout": "upstream ignores it: containerd serves the streams",
		"exit-on-lock-contention":           "it would end the whole process; Kubelith locks the data directory itself",
		"lock-file":                         "Kubelith locks the data directory itself",
	})
}
