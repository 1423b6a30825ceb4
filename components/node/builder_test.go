package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

type component struct {
	name  string
	needs []string
}

func (c component) Name() string                    { return c.name }
func (c component) Needs() []string                 { return c.needs }
func (component) Run(context.Context, func()) error { return nil }

// provider is a component that takes the place of another one.
type provider struct {
	component
	other string
}

func (p provider) Provides() string { return p.other }

func build(components ...lifecycle.Component) *builder {
	b := &builder{}
	for _, c := range components {
		b.add(c)
	}
	return b
}

// drawn is "name(needs)" of each component.
func drawn(components []lifecycle.Component) string {
	var out []string
	for _, c := range components {
		out = append(out, fmt.Sprintf("%s(%s)", c.Name(), strings.Join(c.Needs(), " ")))
	}
	return strings.Join(out, " ")
}

func TestEnabled(t *testing.T) {
	needs := []string{"containerd", "network"}
	b := build(component{"apiserver", nil}, component{"containerd", nil})
	b.with("containerd").add(component{"images", []string{"containerd"}})
	b.with("network").add(component{"cni", []string{"apiserver", "containerd"}})
	b.with("containerd").add(component{"network", []string{"apiserver"}})
	b.add(component{"kubelet", needs})
	b.add(component{"dns", []string{"apiserver", "proxy"}})
	for _, c := range []struct{ disabled, want string }{
		{"", "apiserver() containerd() images(containerd) cni(apiserver containerd) network(apiserver) kubelet(containerd network) dns(apiserver proxy)"},
		{"dns", "apiserver() containerd() images(containerd) cni(apiserver containerd) network(apiserver) kubelet(containerd network)"},
		{"network", "apiserver() containerd() images(containerd) kubelet(containerd) dns(apiserver proxy)"},
		{"proxy", "apiserver() containerd() images(containerd) cni(apiserver containerd) network(apiserver) kubelet(containerd network) dns(apiserver)"},
		{"containerd", "apiserver() kubelet() dns(apiserver proxy)"},
		{"kubelet,containerd,proxy,dns", "apiserver()"},
	} {
		var disabled []string
		if c.disabled != "" {
			disabled = strings.Split(c.disabled, ",")
		}
		before := slices.Clone(disabled)
		got, err := b.enabled(disabled)
		if err != nil || drawn(got) != c.want {
			t.Errorf("--disable=%s: got  %s (%v)\nwant %s", c.disabled, drawn(got), err, c.want)
		}
		if !slices.Equal(disabled, before) {
			t.Errorf("--disable=%s: the setting became %v", c.disabled, disabled)
		}
	}
	if !slices.Equal(needs, []string{"containerd", "network"}) {
		t.Errorf("the component's own needs became %v", needs)
	}
}

// On an agent the connection stands where the apiserver does on a server.
func TestEnabledOnAgent(t *testing.T) {
	b := build(provider{component{"connection", nil}, "apiserver"}, component{"containerd", nil}, component{"kubelet", []string{"apiserver", "containerd", "controller-manager"}})
	got, err := b.enabled([]string{"controller-manager"})
	if want := "connection() containerd() kubelet(connection containerd)"; err != nil || drawn(got) != want {
		t.Errorf("got %s (%v), want %s", drawn(got), err, want)
	}
}

// TestEnabledReportsAll: a user sees everything that is wrong at once.
func TestEnabledReportsAll(t *testing.T) {
	b := build(component{"etcd", nil})
	first, second := errors.New("first"), errors.New("second")
	b.add(component{"a", nil}, first)
	b.add(component{"b", nil}, nil)
	b.add(component{"c", nil}, second)
	got, err := b.enabled(nil)
	if !errors.Is(err, first) || !errors.Is(err, second) || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestWithUnknown: a component cannot go with one that is not there, such as one whose name is misspelt.
func TestWithUnknown(t *testing.T) {
	b := build(component{"kubelet", nil})
	b.with("kublet").add(component{"host-ports", nil})
	if _, err := b.enabled(nil); err == nil || !strings.Contains(err.Error(), "host-ports is switched off with kublet") {
		t.Errorf("error %v", err)
	}
}

// TestDisable: whatever is switched off, alone or with others, no component that is left needs something that is not
// there, and only what was named is gone.
func TestDisable(t *testing.T) {
	if _, err := applyGates(&config.Server{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bundle, err := pki.Ensure(pki.Options{Dir: dir, NodeName: "n", ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	started := func(disabled ...string) (all []string) {
		t.Helper()
		cfg := config.Default()
		cfg.NodeName, cfg.NodeIP, cfg.DataDir, cfg.RunDir, cfg.Disable = "n", []string{"192.0.2.1"}, dir, dir, disabled
		log := logrus.New()
		components, err := server(cfg, &machine{pki: bundle}, log)
		if err != nil {
			t.Fatalf("--disable=%s: %v", strings.Join(disabled, ","), err)
		}
		for _, c := range components {
			all = append(all, c.Name())
		}
		for _, c := range components {
			for _, need := range c.Needs() {
				if !slices.Contains(all, need) {
					t.Errorf("--disable=%s: %s needs %s, which is not there", strings.Join(disabled, ","), c.Name(), need)
				}
			}
		}
		return all
	}
	all := started()
	// What writes into the cluster is cleaned up after.
	instead := map[string]string{"servicelb": "servicelb-cleaner", "metrics-publisher": "metrics-cleaner", "network-policy": "network-policy-cleaner"}
	cleaned := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "metrics-server" })
	for i, name := range cleaned {
		cleaned[i] = cmp.Or(instead[name], name)
	}
	if got, want := started("servicelb", "metrics-server", "network-policy"), cleaned; !slices.Equal(got, want) {
		t.Errorf("--disable=servicelb,metrics-server,network-policy: %v, want %v", got, want)
	}
	var optional []string
	for _, c := range config.Components() {
		if c.Optional != config.Never && c.Kind == config.Runs && slices.Contains(cleaned, c.Name) {
			optional = append(optional, c.Name)
		}
	}
	// One, two, and all but one or none: a fault with three also occurs with two of them.
	cases := [][]string{optional}
	for i, a := range optional {
		cases = append(cases, []string{a}, slices.DeleteFunc(slices.Clone(optional), func(name string) bool { return name == a }))
		for _, b := range optional[i+1:] {
			cases = append(cases, []string{a, b})
		}
	}
	for _, disabled := range cases {
		gone := slices.Clone(disabled)
		if slices.Contains(disabled, "containerd") {
			gone = append(gone, "images", "network")
		}
		if slices.Contains(disabled, "dns") {
			gone = append(gone, "dns-publisher")
		}
		if slices.Contains(disabled, "kubelet") {
			gone = append(gone, "host-ports", "upgrader")
		}
		if slices.Contains(gone, "network") {
			gone = append(gone, "cni", "podlink", "network-policy")
		}
		want := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(gone, name) })
		if got := started(disabled...); !slices.Equal(got, want) {
			t.Errorf("--disable=%s: %v, want %v", strings.Join(disabled, ","), got, want)
		}
	}
}

// TestNames: the configuration knows the components of a server and of an agent, and no others.
func TestNames(t *testing.T) {
	cfg, agent := plannedAgent(t)
	built, err := agent.build(cfg, silent())
	if err != nil {
		t.Fatal(err)
	}
	want := append(namesOf(built), "connection", "ca-trust") // added once the agent has joined
	for _, disabled := range [][]string{nil, {"servicelb", "metrics-server", "network-policy"}} {
		_, components, err := plan(planned(t, func(c *config.Server) { c.Disable = disabled }))
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, namesOf(components)...)
	}
	slices.Sort(want)
	var got []string
	for _, c := range config.Components() {
		if c.Kind == config.Runs {
			got = append(got, c.Name)
		}
	}
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("config.Components has %v, want %v", got, want)
	}
}

// TestOwnPorts: no Service of type LoadBalancer gets a port on which a component listens for other machines.
func TestOwnPorts(t *testing.T) {
	for _, backend := range []string{"vxlan", "wireguard"} {
		cfg := planned(t, func(c *config.Server) { c.Network, c.HTTPSPort = backend, 7443 })
		_, components, err := plan(cfg)
		if err != nil {
			t.Fatal(err)
		}
		node, server := ownPorts(cfg)
		taken := slices.Concat(node, server)
		has := func(network string, number int) bool {
			return slices.Contains(taken, hostport.Port{Protocol: corev1.Protocol(strings.ToUpper(network)), Number: int32(number)})
		}
		for _, p := range ports(components) {
			loopback := p.Address != "" && net.ParseIP(p.Address).IsLoopback()
			if p.Component != "kubelet" && !loopback && !has(p.Network, p.Number) { // the kubelet's is in its Node
				t.Errorf("%s: a Service may get %d/%s, the port of %s", backend, p.Number, p.Network, p.Component)
			}
		}
		if !has("tcp", names.PeerPort) { // where etcd listens once there are other servers
			t.Errorf("%s: a Service may get %d/tcp", backend, names.PeerPort)
		}
	}
}

// TestPolicies: a component's policy is the one that it states, elected or not.
func TestPolicies(t *testing.T) {
	_, components, err := plan(planned(t, func(*config.Server) {}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]lifecycle.Policy{"etcd": lifecycle.EndProcess, "dns": lifecycle.RestartBeside, "proxy": lifecycle.RestartAlone, "scheduler": lifecycle.RestartAlone, "token": lifecycle.RestartBeside}
	for _, c := range components {
		if policy, ok := want[c.Name()]; ok && lifecycle.PolicyOf(c) != policy {
			t.Errorf("%s has policy %v, want %v", c.Name(), lifecycle.PolicyOf(c), policy)
		}
		delete(want, c.Name())
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}
