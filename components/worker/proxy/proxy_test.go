package proxy

import (
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/davecgh/go-spew/spew"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"

	"kubelith.io/kubelith/base/args"
)

func options(args ...string) Options {
	return Options{
		Client:       &rest.Config{Host: "memory", QPS: 50},
		NodeName:     "one",
		NodeIPs:      []net.IP{net.ParseIP("192.0.2.1")},
		ClusterCIDRs: []string{"10.42.0.0/16"},
		Args:         args,
	}
}

// Every flag of upstream's kube-proxy either works or is refused with a reason; ours have no other names.
func TestEveryUpstreamFlagIsKnown(t *testing.T) {
	upstream := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	kubeproxy.NewOptions().AddFlags(upstream)
	c, client, err := configure(options())
	if err != nil {
		t.Fatal(err)
	}
	ours, no := flags(c, client), refused()
	upstream.VisitAll(func(f *pflag.Flag) {
		mine := ours.Lookup(f.Name)
		if (mine != nil) == (no[f.Name] != "") {
			t.Errorf("--%s: works: %v, refused: %q", f.Name, mine != nil, no[f.Name])
		}
	})
	ours.VisitAll(func(f *pflag.Flag) {
		if upstream.Lookup(f.Name) == nil {
			t.Errorf("--%s is not upstream's", f.Name)
		}
	})
	notHere := args.Merge(args.Logging(), args.FeatureGates())
	for name := range no {
		if upstream.Lookup(name) == nil && notHere[name] == "" {
			t.Errorf("--%s is refused but not upstream's", name)
		}
	}
}

// Each flag that we take changes what the component runs with, in a build from arguments as a user gives them.
func TestEveryFlagCounts(t *testing.T) {
	build := func(args ...string) string {
		c, client, err := configure(options(args...))
		if err != nil {
			t.Errorf("%v: %v", args, err)
			return ""
		}
		spew := spew.ConfigState{DisablePointerAddresses: true, DisableMethods: true}
		return spew.Sdump(c, client.QPS, client.Burst)
	}
	values := map[string]string{
		"nodeport-addresses": "10.0.0.0/8", "healthz-bind-address": "127.0.0.1:1", "cluster-cidr": "10.9.0.0/16",
		"pod-bridge-interface": "br0", "pod-interface-name-prefix": "veth", "kube-api-burst": "9", "detect-local-mode": "InterfaceNamePrefix",
		// Upstream wants min-sync-period below sync-period.
		"iptables-min-sync-period": "2s",
	}
	together := map[string]string{"kube-api-burst": "kube-api-qps=5", "detect-local-mode": "pod-interface-name-prefix=veth"}
	c, client, err := configure(options())
	if err != nil {
		t.Fatal(err)
	}
	flags(c, client).VisitAll(func(f *pflag.Flag) {
		value := values[f.Name]
		switch kind := f.Value.Type(); {
		case f.Name == "proxy-mode": // one value only
			return
		case value != "":
		case kind == "bool":
			value = map[bool]string{true: "false", false: "true"}[f.DefValue == "true"]
		case kind == "duration":
			value = "77m"
		default:
			value = "7"
		}
		var others []string
		if o := together[f.Name]; o != "" {
			others = []string{o}
		}
		if build(append(others, f.Name+"="+value)...) == build(others...) {
			t.Errorf("%s=%s changes nothing", f.Name, value)
		}
	})
}

func TestArgs(t *testing.T) {
	c, client, err := configure(options("masquerade-all=true", "nodeport-addresses=10.0.0.0/8,localhost",
		"iptables-min-sync-period=3s", "conntrack-max-per-core=7", "conntrack-udp-timeout=9s", "healthz-bind-address=127.0.0.1:1",
		"kube-api-qps=12", "cluster-cidr=10.9.0.0/16,fd00::/64", "proxy-mode=nftables"))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case !c.Linux.MasqueradeAll:
		t.Error("masquerade-all")
	case !reflect.DeepEqual(c.NodePortAddresses, []string{"10.0.0.0/8", "localhost"}):
		t.Error("nodeport-addresses", c.NodePortAddresses)
	case c.MinSyncPeriod.Duration != 3*time.Second:
		t.Error("iptables-min-sync-period", c.MinSyncPeriod)
	case *c.Linux.Conntrack.MaxPerCore != 7 || c.Linux.Conntrack.UDPTimeout.Duration != 9*time.Second:
		t.Error("conntrack", c.Linux.Conntrack)
	case c.HealthzBindAddress != "127.0.0.1:1":
		t.Error("healthz-bind-address", c.HealthzBindAddress)
	case client.QPS != 12:
		t.Error("kube-api-qps", client.QPS)
	case !reflect.DeepEqual(c.DetectLocal.ClusterCIDRs, []string{"10.9.0.0/16", "fd00::/64"}):
		t.Error("cluster-cidr", c.DetectLocal.ClusterCIDRs)
	}
}

func TestBadArgs(t *testing.T) {
	for arg, want := range map[string]string{
		"proxy-mode=iptables":          "only nftables",
		"detect-local-mode=NodeCIDR":   "ClusterCIDR",
		"masquerade-al=true":           `did you mean "masquerade-all"`,
		"bind-address=1.2.3.4":         "--node-ip",
		"config=/etc/x":                "cannot be set",
		"nodeport-addresses=nonsense":  "nonsense",
		"iptables-sync-period=-1s":     "greater than 0",
		"conntrack-min":                "key=value",
		"kube-api-burst=9":             "without kube-api-qps",
		"feature-gates=NFTablesX=true": "cannot be set",
	} {
		_, err := New(options(arg))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", arg, err, want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than one line: %q", arg, err)
		}
	}
}

func TestNodePortAddresses(t *testing.T) {
	ips := []net.IP{net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::1"), net.ParseIP("192.0.2.2")}
	for _, test := range []struct {
		given, want []string
		ips         []net.IP
	}{
		{[]string{"primary"}, []string{"192.0.2.1/32", "2001:db8::1/128"}, ips},
		{[]string{"primary"}, nil, []net.IP{net.ParseIP("127.0.0.1")}},
		{[]string{"all"}, []string{"0.0.0.0/0", "::/0"}, ips},
		{[]string{"localhost", "10.0.0.0/8"}, []string{"127.0.0.0/8", "::1/128", "10.0.0.0/8"}, ips},
	} {
		if got := nodePortAddresses(test.given, test.ips); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%v: got %v, want %v", test.given, got, test.want)
		}
	}
}
