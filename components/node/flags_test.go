package node

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/davecgh/go-spew/spew"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	cliflag "k8s.io/component-base/cli/flag"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kcmoptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	kubeletoptions "k8s.io/kubernetes/cmd/kubelet/app/options"
	gcconfig "k8s.io/kubernetes/pkg/controller/garbagecollector/config"

	"kubelith.io/kubelith/base/args"
	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/cluster/controllermanager"
	"kubelith.io/kubelith/components/cluster/scheduler"
	"kubelith.io/kubelith/components/controlplane/apiserver"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/worker/kubelet"
)

// upstream is a component whose flags pass through.
type upstream struct {
	name    string
	flags   *pflag.FlagSet // upstream's own
	refused args.Refused
	// build creates the component with the arguments and returns all upstream options that it will run with, but not
	// the flags themselves.
	build func(keyValues ...string) ([]any, error)
	// values are legal and not the default, for flags whose type does not imply one; together is what has to be given
	// with them.
	values, together map[string]string
	// unseen are flags whose effect cannot be seen in the options.
	unseen []string
}

func upstreams(t *testing.T) []upstream {
	t.Helper()
	schedulerConfig := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(schedulerConfig, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparallelism: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := applyGates(&config.Server{}); err != nil {
		t.Fatal(err)
	}
	kubeletFile := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(kubeletFile, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nshutdownGracePeriod: 30s\nmaxPods: 42\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, inProcess := logrus.StandardLogger(), client.New("https://127.0.0.1:6443", logrus.StandardLogger())
	bundle := &pki.Bundle{}
	kcmOptions, err := kcmoptions.NewKubeControllerManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	kubeletConfig, err := kubeletoptions.NewKubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	kubeletFlags := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	kubeletoptions.NewKubeletFlags().AddFlags(kubeletFlags)
	kubeletoptions.AddKubeletConfigFlags(kubeletFlags, kubeletConfig)
	etcdFlags, etcdGoFlags := pflag.NewFlagSet("etcd", pflag.ContinueOnError), flag.NewFlagSet("etcd", flag.ContinueOnError)
	embed.NewConfig().AddFlags(etcdGoFlags)
	etcdFlags.AddGoFlagSet(etcdGoFlags)

	// A separate signer needs both files.
	signing := map[string]string{}
	for _, signer := range []string{"kube-apiserver-client", "legacy-unknown"} {
		cert, key := "cluster-signing-"+signer+"-cert-file", "cluster-signing-"+signer+"-key-file"
		signing[cert] = key + "=k"
		signing[key] = cert + "=c"
	}

	return []upstream{
		{
			name: "etcd", flags: etcdFlags, refused: etcd.Refused(),
			build: func(keyValues ...string) ([]any, error) {
				s, err := etcd.New(etcd.Options{DataDir: "/d", Socket: "/r/etcd.sock", Name: "default", Args: keyValues, Zap: zap.NewNop()})
				if err != nil {
					return nil, err
				}
				c := *s.Upstream()
				c.ServerFeatureGate = nil
				return []any{c}, nil
			},
			values: map[string]string{"heartbeat-interval": "10", "max-concurrent-streams": "1000"},
		},
		{
			name: "apiserver", flags: merged(apiserveroptions.NewServerRunOptions().Flags()), refused: apiserver.Refused(),
			build: func(keyValues ...string) ([]any, error) {
				s, err := apiserver.New(apiserver.Options{BindAddress: "0.0.0.0", Port: 6443, AdvertiseAddress: "192.0.2.1", ServiceCIDRs: []string{"10.43.0.0/16"},
					ClusterDomain: "cluster.local", EtcdEndpoint: "unix:///r/etcd.sock", PKI: bundle, Args: keyValues, Client: inProcess})
				if err != nil {
					return nil, err
				}
				o := *s.Upstream()
				generic := *o.GenericServerRunOptions
				generic.ComponentGlobalsRegistry = nil
				o.GenericServerRunOptions = &generic
				return []any{o}, nil
			},
			values: map[string]string{"allow-metric-labels": "metric,label=a", "authorization-mode": "Node,RBAC,ABAC", "service-node-port-range": "30100-30200", "tls-curve-preferences": "29", "tls-sni-cert-key": "c.crt,c.key"},
			// Upstream binds them to variables of the package of the plugin DefaultTolerationSeconds.
			unseen: []string{"default-not-ready-toleration-seconds", "default-unreachable-toleration-seconds"},
		},
		{
			name: "controller-manager", flags: merged(kcmOptions.Flags(kcm.KnownControllers(), kcm.ControllersDisabledByDefault(), kcm.ControllerAliases())), refused: controllermanager.Refused(),
			build: func(keyValues ...string) ([]any, error) {
				s, err := controllermanager.New(controllermanager.Options{ClusterCIDRs: []string{"10.42.0.0/16"}, ServiceCIDRs: []string{"10.43.0.0/16"}, PKI: bundle, Args: keyValues, Client: inProcess, Log: log})
				if err != nil {
					return nil, err
				}
				c := s.Upstream().ComponentConfig
				ignored := slices.Clone(c.GarbageCollectorController.GCIgnoredResources) // built from a set
				slices.SortFunc(ignored, func(a, b gcconfig.GroupResource) int {
					return strings.Compare(a.Group+"/"+a.Resource, b.Group+"/"+b.Resource)
				})
				c.GarbageCollectorController.GCIgnoredResources = ignored
				return []any{c}, nil
			},
			values:   map[string]string{"cidr-allocator-type": "", "controllers": "-cronjob-controller", "mirroring-max-endpoints-per-subset": "999"},
			together: signing,
		},
		{
			name: "scheduler", flags: merged(*scheduleroptions.NewOptions().Flags), refused: scheduler.Refused(),
			build: func(keyValues ...string) ([]any, error) {
				s, err := scheduler.New(scheduler.Options{Args: keyValues, Client: inProcess})
				if err != nil {
					return nil, err
				}
				o := s.Upstream()
				return []any{o.ComponentConfig, o.Deprecated.PodMaxInUnschedulablePodsDuration}, nil
			},
			values: map[string]string{"config": schedulerConfig},
		},
		{
			name: "kubelet", flags: kubeletFlags, refused: kubelet.Refused(),
			build: func(keyValues ...string) ([]any, error) {
				s, err := kubelet.New(kubelet.Options{RootDir: "/var/lib/kubelet", StaticPodDir: "/s", NodeName: "one", NodeIPs: []net.IP{net.ParseIP("192.0.2.1")},
					ClusterDNS: []net.IP{net.ParseIP("10.43.0.10")}, ClusterDomain: "cluster.local", CRISocket: "/r/c.sock", CgroupDriver: "cgroupfs", ResolvConf: "/etc/resolv.conf",
					Serving: pki.Pair{Cert: "c", Key: "k"}, Args: keyValues, Client: inProcess.NodeConfig("one"), Log: log})
				if err != nil {
					return nil, err
				}
				return []any{*s.Upstream()}, nil
			},
			values: map[string]string{"config": kubeletFile, "address": "192.0.2.1", "healthz-bind-address": "192.0.2.1", "image-credential-provider-config": kubeletFile, "image-credential-provider-bin-dir": filepath.Dir(kubeletFile),
				"cgroups-per-qos": "false", "cpu-cfs-quota-period": "50ms",
				"enforce-node-allocatable": "none", "eviction-hard": "memory.available<7Mi", "eviction-soft": "memory.available<9Mi", "manifest-url-header": "a:b",
				"reserved-cpus": "0", "reserved-memory": "0:memory=1Gi", "topology-manager-policy": "restricted", "topology-manager-scope": "pod", "system-cgroups": "/system"},
			unseen: []string{"fail-cgroupv1"}, // depends on the host
			together: map[string]string{"image-credential-provider-config": "image-credential-provider-bin-dir=" + filepath.Dir(kubeletFile), "image-credential-provider-bin-dir": "image-credential-provider-config=" + kubeletFile,
				"cgroups-per-qos": "enforce-node-allocatable=none", "system-cgroups": "cgroup-root=/", "eviction-soft": "eviction-soft-grace-period=memory.available=1m"},
		},
	}
}

// Every flag of upstream's own flag sets is either refused with a reason, or
// changes the options that the component runs with. No refusal is stale.
func TestEveryUpstreamFlag(t *testing.T) {
	shared := args.Merge(args.Logging(), args.FeatureGates(), args.Clients(), args.Serving(), args.Election())
	known := map[string]bool{"version": true, "help": true} // of every command
	all := upstreams(t)
	for _, u := range all {
		u.flags.VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	}
	for name := range shared {
		if !known[name] {
			t.Errorf("base/args refuses %q, which no component of upstream has", name)
		}
	}
	for _, u := range all {
		t.Run(u.name, func(t *testing.T) {
			for name, why := range u.refused {
				if _, group := shared[name]; u.flags.Lookup(name) == nil && !group {
					t.Errorf("%q is refused but not a flag of upstream", name)
				}
				if why == "" {
					t.Errorf("%q is refused without a reason", name)
				}
			}
			plain, err := u.build()
			if err != nil {
				t.Fatal(err)
			}
			before := dump(plain)
			if again, err := u.build(); err != nil || dump(again) != before {
				t.Fatalf("two builds without arguments differ (%v): the comparison would be worth nothing", err)
			}
			accepted := 0
			u.flags.VisitAll(func(f *pflag.Flag) {
				value := u.value(t, f)
				if why, no := u.refused[f.Name]; no {
					if _, err := u.build(f.Name + "=" + value); err == nil || !strings.Contains(err.Error(), why) {
						t.Errorf("%s=%s: got %v, want it refused: %s", f.Name, value, err, why)
					}
					return
				}
				accepted++
				if slices.Contains(u.unseen, f.Name) {
					return
				}
				if strings.Contains(f.Deprecated, "no-op") || strings.Contains(f.Deprecated, "no effect") {
					t.Errorf("%s is accepted, but upstream says: %s", f.Name, f.Deprecated)
				}
				with := []string{f.Name + "=" + value}
				compared := before
				if more := u.together[f.Name]; more != "" {
					with = append(with, strings.Fields(more)...)
					others, err := u.build(with[1:]...)
					if err == nil { // else they need this flag in turn
						compared = dump(others)
					}
				}
				changed, err := u.build(with...)
				if err == nil && dump(changed) == compared && f.Value.Type() == "bool" {
					// Our default is the opposite of upstream's.
					changed, err = u.build(f.Name + "=" + f.DefValue)
				}
				if err != nil {
					t.Errorf("%s (%s): %v", f.Name, f.Value.Type(), err)
					return
				}
				if dump(changed) == compared {
					t.Errorf("%s=%s (%s, default %q) is swallowed: it changes nothing", f.Name, value, f.Value.Type(), f.DefValue)
				}
			})
			t.Logf("%d flags accepted, %d refused", accepted, len(u.refused))
			if _, err := u.build("no-such-flag=1"); err == nil {
				t.Error("an unknown flag is accepted")
			}
		})
	}
}

// dump writes values without what differs from one build to the next.
func dump(values []any) string {
	c := spew.ConfigState{Indent: " ", DisablePointerAddresses: true, DisableCapacities: true, SortKeys: true, SpewKeys: true, DisableMethods: true}
	return c.Sdump(values...)
}

func merged(sets cliflag.NamedFlagSets) *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range sets.Order {
		fs.AddFlagSet(sets.FlagSets[name])
	}
	return fs
}

// value is a legal value of the flag that is not its default.
func (u upstream) value(t *testing.T, f *pflag.Flag) string {
	t.Helper()
	if v, ok := u.values[f.Name]; ok {
		return v
	}
	switch kind := f.Value.Type(); kind {
	case "bool":
		return fmt.Sprint(f.DefValue != "true")
	case "int", "int32", "int64", "uint", "uint32", "uint64", "float32", "float64", "uint32Value":
		var n float64
		fmt.Sscan(f.DefValue, &n)
		return fmt.Sprint(int64(n) + 1)
	case "duration":
		return "77m"
	case "mapStringString", "mapStringBool":
		return "a=true"
	default:
		return "x"
	}
}

// A kubelet's configuration file is the base: arguments and what the composition decides go on top.
func TestKubeletConfigFile(t *testing.T) {
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "kubelet.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	build := func(keyValues ...string) (*kubelet.Server, error) {
		return kubelet.New(kubelet.Options{RootDir: "/var/lib/kubelet", StaticPodDir: "/s", NodeName: "one", NodeIPs: []net.IP{net.ParseIP("192.0.2.1")},
			ClusterDNS: []net.IP{net.ParseIP("10.43.0.10")}, ClusterDomain: "cluster.local", CRISocket: "/r/c.sock", CgroupDriver: "cgroupfs",
			ResolvConf: "/run/resolv.conf", Serving: pki.Pair{Cert: "c", Key: "k"}, Args: keyValues, Client: client.New("https://127.0.0.1:6443", logrus.StandardLogger()).NodeConfig("one"), Log: logrus.StandardLogger()})
	}
	s, err := build("config="+write("maxPods: 42\nstaticPodPath: /mine\nclusterDomain: cluster.local\nshutdownGracePeriod: 30s\n"), "max-pods=43")
	if err != nil {
		t.Fatal(err)
	}
	c := s.Upstream().KubeletConfiguration
	if c.MaxPods != 43 || c.StaticPodPath != "/mine" || c.ClusterDomain != "cluster.local" || c.ShutdownGracePeriod.Duration != 30*time.Second ||
		c.ResolverConfig != "/run/resolv.conf" || c.ContainerRuntimeEndpoint != "unix:///r/c.sock" {
		t.Errorf("%+v", c)
	}
	if c.Authentication.Anonymous.Enabled || c.ReadOnlyPort != 0 || string(c.Authorization.Mode) != "Webhook" {
		t.Errorf("open to everybody: %+v, port %d, %s", c.Authentication, c.ReadOnlyPort, c.Authorization.Mode)
	}
	for text, want := range map[string]string{
		"featureGates: {InPlacePodVerticalScaling: true}\n": "feature-gates",
		"maxPods: many\n": "maxPods",
		// What the composition would overwrite.
		"clusterDomain: other\n":                             "clusterDomain: cannot be set: use Kubelith's own --cluster-domain",
		"cgroupDriver: systemd\n":                            "cgroupDriver: cannot be set: ",
		"containerRuntimeEndpoint: unix:///run/other.sock\n": "containerRuntimeEndpoint: cannot be set: ",
		"imageServiceEndpoint: unix:///run/other.sock\n":     "imageServiceEndpoint: cannot be set: ",
		"tlsCertFile: /c\ntlsPrivateKeyFile: /k\n":           "tlsCertFile: cannot be set: ",
		"tlsPrivateKeyFile: /k\n":                            "tlsPrivateKeyFile: cannot be set: ",
		"authentication: {x509: {clientCAFile: /c}}\n":       "clientCAFile: cannot be set: ",
	} {
		if _, err := build("config=" + write(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}
