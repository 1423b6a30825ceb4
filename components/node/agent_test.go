package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/components/worker/dns"
	"kubelith.io/kubelith/components/worker/join"
)

func plannedAgent(t *testing.T) (*config.Agent, *agent) {
	t.Helper()
	cfg := config.DefaultAgent()
	cfg.DataDir, cfg.RunDir, cfg.KubeletRootDir = filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "kubelet")
	cfg.NodeName, cfg.NodeIP, cfg.Server = "two", []string{"192.0.2.2"}, "https://192.0.2.1:6443"
	return cfg, &agent{cluster: config.Default().ClusterInfo("v1.37.1", "v0"), machine: &machine{resolvConf: dns.HostResolvConf()}}
}

// An agent runs what runs pods, listens where a server's node does, needs nothing that is not there, and creates
// nothing before it runs.
func TestAgentComponents(t *testing.T) {
	cfg, m := plannedAgent(t)
	components, err := m.build(cfg, silent())
	if err != nil {
		t.Fatal(err)
	}
	_, onServer, err := plan(planned(t, func(c *config.Server) { c.NodeIP = cfg.NodeIP }))
	if err != nil {
		t.Fatal(err)
	}
	want := namesOf(slices.DeleteFunc(slices.Clone(onServer), func(c lifecycle.Component) bool { return !ofWorker(c) }))
	if got := namesOf(components); !slices.Equal(got, want) {
		t.Errorf("components %v, want those of a server's node: %v", got, want)
	}
	all := append(namesOf(components), (*join.Connection)(nil).Provides()) // opened by the join
	for _, c := range components {
		for _, need := range c.Needs() {
			if !slices.Contains(all, need) {
				t.Errorf("%s needs %s, which is not there", c.Name(), need)
			}
		}
	}
	if got, want := fmt.Sprint(ports(components)), fmt.Sprint(ports(onServer)[1:]); got != want || len(ports(components)) == 0 {
		t.Errorf("ports %s, want %s", got, want)
	}
	for _, dir := range []string{cfg.DataDir, cfg.RunDir, cfg.KubeletRootDir} {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s was created", dir)
		}
	}
}

// ofWorker reports whether a component is of the scope worker, by its package.
func ofWorker(c lifecycle.Component) bool {
	t := reflect.TypeOf(c.(wired).Component)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return strings.Contains(t.PkgPath(), "/components/worker/") || strings.Contains(t.PkgPath(), "/plugins/")
}

// What waits for the server is not waited for at the start.
func TestWithoutServer(t *testing.T) {
	cfg, m := plannedAgent(t)
	components, err := m.build(cfg, silent())
	if err != nil {
		t.Fatal(err)
	}
	if got := withoutServer(components); !slices.Equal(got, []string{"containerd", "kubelet"}) {
		t.Errorf("got %v", got)
	}
}

// Only a change of what an agent reads at its start restarts it.
func TestRestartFor(t *testing.T) {
	text := func(change func(*config.ClusterInfo)) []byte {
		info := config.Default().ClusterInfo("v1.37.1", "v0.1.0")
		info.Network = "vxlan"
		change(info)
		data, err := json.Marshal(info)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	old := text(func(*config.ClusterInfo) {})
	for want, change := range map[string]func(*config.ClusterInfo){
		"": func(c *config.ClusterInfo) { c.KubernetesVersion, c.KubelithVersion = "v1.38.0", "v0.2.0" },
		"the network of the cluster changed from [vxlan] to [host-gw]":                   func(c *config.ClusterInfo) { c.Network = "host-gw" },
		"the pods' networks of the cluster changed from [10.42.0.0/16] to [10.9.0.0/16]": func(c *config.ClusterInfo) { c.ClusterCIDR = []string{"10.9.0.0/16"} },
		"the DNS address of the cluster changed from [10.43.0.10] to [10.43.0.11]":       func(c *config.ClusterInfo) { c.ClusterDNS = []string{"10.43.0.11"} },
	} {
		if got := restartFor(old, text(change)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := restartFor(old, []byte("{}")); got != "" {
		t.Errorf("settings that cannot be read: %q", got)
	}
}

// The token may be in a file, which a node that has joined does not need any more.
func TestTokenFile(t *testing.T) {
	cfg, _ := plannedAgent(t)
	cfg.TokenFile = filepath.Join(t.TempDir(), "token")
	if _, err := find(t.Context(), cfg, silent()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "correct --token-file") {
		t.Errorf("no file: error %v", err)
	}
	if err := os.WriteFile(cfg.TokenFile, []byte("kl1_x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := find(t.Context(), cfg, silent()); err == nil || strings.Contains(err.Error(), "token-file") {
		t.Errorf("error %v, want that of the token", err)
	}
}
