package apiserver

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	upstreamadmission "k8s.io/apiserver/pkg/admission"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/server/flagz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"

	"kubelith.io/kubelith/base/args"
	"kubelith.io/kubelith/components/controlplane/apiserver/heartbeat"
	"kubelith.io/kubelith/components/controlplane/apiserver/initializers"
	"kubelith.io/kubelith/components/controlplane/apiserver/passwordfile"
	"kubelith.io/kubelith/components/controlplane/apiserver/policywarning"
	"kubelith.io/kubelith/components/controlplane/apiserver/restriction"
	"kubelith.io/kubelith/components/controlplane/apiserver/virtualaddress"
	"kubelith.io/kubelith/plugins/admission"
)

// slowDisk is how long etcd may take to answer a health check.
const slowDisk = 20 * time.Second

// complete translates Options into upstream's and applies the user's arguments on top. Defaults that a user may change
// are set before the arguments; arguments that Kubelith sets itself are refused.
func (srv *Server) complete() error {
	o, s := srv.opts, options.NewServerRunOptions()
	if err := srv.reviewByPlugins(s.Admission.GenericAdmission); err != nil {
		return err
	}
	restrictAgents(s.Admission.GenericAdmission)
	srv.keepVirtualAddress(s.Admission.GenericAdmission)
	warnOfPolicies(s.Admission.GenericAdmission)
	srv.initialize(s.Admission.GenericAdmission)
	s.Admission.GenericAdmission.Decorators = append(s.Admission.GenericAdmission.Decorators, upstreamadmission.DecoratorFunc(admitElection))
	if srv.recorder != nil {
		s.Admission.GenericAdmission.Decorators = append(s.Admission.GenericAdmission.Decorators, upstreamadmission.DecoratorFunc(srv.recorder.admit))
	}
	// First: defining the flags resets some fields to the flags' own defaults.
	sets := s.Flags()
	sets.FlagSet("authentication").StringVar(&srv.passwordFile, "basic-auth-file", "",
		"If set, the file with the passwords of users who authenticate by HTTP basic authentication. Upstream had this flag until 1.18.")
	s.Flagz = flagz.NamedFlagSetsReader{FlagSets: sets} // shown by /flagz: the final options

	s.SecureServing.BindAddress = net.ParseIP(o.BindAddress)
	s.SecureServing.BindPort = o.Port
	s.SecureServing.ServerCert.CertKey.CertFile = o.PKI.APIServer.Cert
	s.SecureServing.ServerCert.CertKey.KeyFile = o.PKI.APIServer.Key
	s.GenericServerRunOptions.AdvertiseAddress = net.ParseIP(o.AdvertiseAddress)
	// Watches would delay the stop of the server for as long as clients keep them.
	s.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = 2 * time.Second

	s.Etcd.StorageConfig.Transport.ServerList = []string{o.EtcdEndpoint}
	// With upstream's 2 s, a disk with slower syncs is never ready, though it would get there.
	s.Etcd.StorageConfig.HealthcheckTimeout, s.Etcd.StorageConfig.ReadycheckTimeout = slowDisk, slowDisk
	s.Etcd.EncryptionProviderConfigFilepath = o.EncryptionConfig
	s.Etcd.EncryptionProviderConfigAutomaticReload = true

	s.AllowPrivileged = true
	s.ServiceClusterIPRanges = strings.Join(o.ServiceCIDRs, ",")
	s.Features.EnableProfiling = false

	s.Authentication.Anonymous.Allow = false // see trustProcess
	s.Authentication.ClientCert.ClientCA = o.PKI.ClusterTrust
	s.Authentication.RequestHeader.ClientCAFile = o.PKI.FrontProxyTrust
	s.Authentication.RequestHeader.AllowedNames = []string{"front-proxy-client"}
	s.Authentication.RequestHeader.UsernameHeaders = []string{"X-Remote-User"}
	s.Authentication.RequestHeader.UIDHeaders = []string{"X-Remote-Uid"}
	s.Authentication.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	s.Authentication.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
	s.Authentication.BootstrapToken.Enable = true
	s.Authentication.ServiceAccounts.Issuers = []string{"https://kubernetes.default.svc." + o.ClusterDomain}
	s.Authentication.ServiceAccounts.KeyFiles = []string{o.PKI.ServiceAccountKey}
	s.ServiceAccountSigningKeyFile = o.PKI.ServiceAccountKey
	s.Authorization.Modes = []string{"Node", "RBAC"}

	s.ProxyClientCertFile = o.PKI.FrontProxyClient.Cert
	s.ProxyClientKeyFile = o.PKI.FrontProxyClient.Key
	s.KubeletConfig.TLSClientConfig.CertFile = o.PKI.KubeletClient.Cert
	s.KubeletConfig.TLSClientConfig.KeyFile = o.PKI.KubeletClient.Key
	s.KubeletConfig.TLSClientConfig.CAFile = o.PKI.KubeletTrust
	s.KubeletConfig.PreferredAddressTypes = []string{"InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname"}
	// The kubelet's Node is known by address; its name may resolve to anything.
	s.ServiceNodePortRange = utilnet.PortRange{Base: 30000, Size: 2768}

	if err := args.Apply("--apiserver-arg", sets, Refused(), o.Args); err != nil {
		return err
	}
	if srv.passwordFile != "" {
		var err error
		if srv.passwords, err = passwordfile.Open(srv.passwordFile); err != nil {
			return fmt.Errorf("--apiserver-arg basic-auth-file: %w", err)
		}
	}
	authorization := sets.FlagSet("authorization")
	for _, mode := range []string{"Node", "RBAC"} {
		if authorization.Changed("authorization-mode") && !slices.Contains(s.Authorization.Modes, mode) {
			return fmt.Errorf("--apiserver-arg authorization-mode: %s is missing: Node and RBAC authorize Kubelith's components; list further modes after them", mode)
		}
	}
	if slices.Contains(s.Admission.GenericAdmission.DisablePlugins, restriction.Name) {
		return fmt.Errorf("--apiserver-arg disable-admission-plugins: %s cannot be disabled: it restricts agents to their own nodes", restriction.Name)
	}
	for _, name := range []string{noderestriction.PluginName, initializers.PluginName} {
		enable(s.Admission.GenericAdmission, name)
	}
	if slices.Contains(s.Admission.GenericAdmission.DisablePlugins, initializers.PluginName) {
		srv.initializers.TurnOff()
	}
	srv.anonymousHealth = !sets.FlagSet("authentication").Changed("anonymous-auth")
	srv.upstream = s
	return nil
}

// reviewByPlugins adds the hooks of plugins to the chain. Its order stays upstream's.
func (srv *Server) reviewByPlugins(a *genericoptions.AdmissionOptions) error {
	if srv.opts.Plugins == nil {
		return nil
	}
	registry, err := admission.Registry(admission.Options{Plugins: srv.opts.Plugins, Log: srv.opts.Log})
	if err != nil {
		return err
	}
	a.Plugins = registry
	return nil
}

// restrictAgents adds the review of what agents write, and of their heartbeats' times, to upstream's plugin for nodes.
func restrictAgents(a *genericoptions.AdmissionOptions) {
	register(a, restriction.Name, restriction.New)
	register(a, heartbeat.Name, heartbeat.New)
	a.RecommendedPluginOrder = slices.Insert(slices.Clone(a.RecommendedPluginOrder),
		slices.Index(a.RecommendedPluginOrder, noderestriction.PluginName)+1, restriction.Name, heartbeat.Name)
}

// warnOfPolicies adds the warning about nodes that do not enforce network policies. It comes after all that may refuse
// them.
func warnOfPolicies(a *genericoptions.AdmissionOptions) {
	register(a, policywarning.Name, policywarning.New)
	a.RecommendedPluginOrder = append(slices.Clone(a.RecommendedPluginOrder), policywarning.Name)
}

// keepVirtualAddress adds the refusal of Services that take the API's virtual address.
func (srv *Server) keepVirtualAddress(a *genericoptions.AdmissionOptions) {
	if srv.opts.VirtualAddress == nil {
		return
	}
	register(a, virtualaddress.Name, func() virtualaddress.Plugin { return virtualaddress.New(srv.opts.VirtualAddress) })
	a.RecommendedPluginOrder = append(slices.Clone(a.RecommendedPluginOrder), virtualaddress.Name)
}

// initialize adds the admission plugin Initializers. It is the last one that changes objects: upstream had it before
// mutating webhooks, but here it must know what an initializer's update becomes.
func (srv *Server) initialize(a *genericoptions.AdmissionOptions) {
	srv.initializers.Register(a.Plugins)
	a.RecommendedPluginOrder = slices.Insert(slices.Clone(a.RecommendedPluginOrder),
		slices.Index(a.RecommendedPluginOrder, mutatingwebhook.PluginName)+1, initializers.PluginName)
}

// register adds a plugin to those that may be enabled.
func register[P upstreamadmission.Interface](a *genericoptions.AdmissionOptions, name string, newPlugin func() P) {
	a.Plugins.Register(name, func(io.Reader) (upstreamadmission.Interface, error) { return newPlugin(), nil })
}

// enable adds a plugin to those that the user enables, unless it is disabled.
func enable(a *genericoptions.AdmissionOptions, name string) {
	if !slices.Contains(a.EnablePlugins, name) && !slices.Contains(a.DisablePlugins, name) {
		a.EnablePlugins = append(a.EnablePlugins, name)
	}
}

// Refused are upstream's flags that the composition sets from Kubelith's own.
func Refused() args.Refused {
	use := func(flag string) string { return "use Kubelith's own --" + flag }
	owned := "Kubelith generates and renews it"
	return args.Merge(args.Logging(), args.FeatureGates(), args.Refused{
		"secure-port":                      use("https-port"),
		"bind-address":                     use("bind-address"),
		"advertise-address":                use("advertise-address"),
		"service-cluster-ip-range":         use("service-cidr"),
		"tls-cert-file":                    owned + "; for another name use --tls-san, for another certificate --apiserver-arg=tls-sni-cert-key=...",
		"tls-private-key-file":             owned,
		"cert-dir":                         owned,
		"client-ca-file":                   owned,
		"requestheader-client-ca-file":     owned,
		"kubelet-client-certificate":       owned,
		"kubelet-client-key":               owned,
		"kubelet-certificate-authority":    owned,
		"proxy-client-cert-file":           owned,
		"proxy-client-key-file":            owned,
		"service-account-signing-key-file": owned,
		"etcd-servers":                     "etcd is part of the process",
		"etcd-cafile":                      "etcd is part of the process",
		"etcd-certfile":                    "etcd is part of the process",
		"etcd-keyfile":                     "etcd is part of the process",
		"permit-port-sharing":              "two servers on one port would be two clusters",
		"apiserver-count":                  "it has no effect with the lease reconciler",
		"default-watch-cache-size":         "upstream ignores it: watch caches size themselves",
		"kubelet-read-only-port":           "upstream ignores it",
		"kubelet-timeout":                  "upstream ignores it",
	})
}
