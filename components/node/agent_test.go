package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/worker/dns"
	"kubelith.io/kubelith/host/preflight"
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
	all := append(namesOf(components), "connection") // opened by the join
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

// A refused start removes the files and directories that it has created, and no others.
func TestForget(t *testing.T) {
	for name, c := range map[string]struct {
		before, after []string // files
		left          []string
	}{
		"new":          {nil, []string{"d/lock", "d/version", "run/data-dir"}, nil},
		"not empty":    {[]string{"d/agent/images/a.tar", "run/x"}, []string{"d/lock", "d/version", "run/data-dir"}, []string{"d", "d/agent", "d/agent/images", "d/agent/images/a.tar", "run", "run/x"}},
		"used":         {[]string{"d/version", "d/lock", "run/data-dir"}, nil, []string{"d", "d/lock", "d/version", "run", "run/data-dir"}},
		"not our file": {nil, []string{"d/lock", "d/other"}, []string{"d", "d/other"}},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			write := func(path string) {
				t.Helper()
				path = filepath.Join(base, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range c.before {
				write(f)
			}
			undo := forget(filepath.Join(base, "d"), filepath.Join(base, "d", "lock"), filepath.Join(base, "d", "version"), filepath.Join(base, "run", "data-dir"))
			for _, f := range c.after {
				write(f)
			}
			undo()
			var left []string
			err := filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
				if rel, _ := filepath.Rel(base, path); rel != "." {
					left = append(left, rel)
				}
				return err
			})
			if err != nil || !slices.Equal(left, c.left) {
				t.Errorf("left %q (%v), want %q", left, err, c.left)
			}
		})
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

// check reports in one line that the cluster cannot be joined, and still checks the host.
func TestPreflightAgent(t *testing.T) {
	cfg, _ := plannedAgent(t)
	results := PreflightAgent(t.Context(), cfg)
	if first := results[0]; first.Name != "cluster" || first.Status != preflight.Fail || !strings.Contains(first.Message, "a token is needed") {
		t.Errorf("first result %v", first)
	}
	if len(results) < 2 {
		t.Error("the host was not checked")
	}
	if _, err := os.Stat(cfg.DataDir); err == nil {
		t.Error("the data directory was created")
	}
}

// The CA of the cluster is one that the clock can be compared with.
func TestAgentNotBefore(t *testing.T) {
	cfg, m := plannedAgent(t)
	bundle, err := pki.Ensure(pki.Options{Dir: filepath.Join(t.TempDir(), "tls"), NodeName: "n", ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(bundle.ClusterCA.Cert)
	if err != nil {
		t.Fatal(err)
	}
	stored := filepath.Join(cfg.DataDir, "agent", "pki", "cluster-ca.crt")
	if err := os.MkdirAll(filepath.Dir(stored), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stored, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	if opts := agentCheckOptions(cfg, m.cluster, nil); opts.NotBeforeOf != stored+" is valid from" {
		t.Errorf("compared with what %s", opts.NotBeforeOf)
	}
}

// TestOtherAddress: a node whose address was found by the default route warns when it reaches its server from another
// one.
func TestOtherAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		from string
		node []string
		want string
	}{
		"the same":       {"192.0.2.3", []string{"192.0.2.3"}, ""},
		"one of two":     {"2001:db8::3", []string{"192.0.2.3", "2001:db8::3"}, ""},
		"another":        {"192.0.2.3", []string{"10.0.2.15"}, "node ip: this machine reaches the server from 192.0.2.3, not from 10.0.2.15, the address of its default route: set --node-ip 192.0.2.3 if the other nodes are on that network"},
		"another of two": {"192.0.2.3", []string{"10.0.2.15", "2001:db8::3"}, "node ip: this machine reaches the server from 192.0.2.3, not from 10.0.2.15,"},
		"another family": {"2001:db8::3", []string{"192.0.2.3"}, ""},
		"a tunnel":       {"127.0.0.1", []string{"192.0.2.3"}, ""},
	} {
		var node []net.IP
		for _, ip := range tc.node {
			node = append(node, net.ParseIP(ip))
		}
		results := otherAddress(net.ParseIP(tc.from), node)
		if tc.want == "" && len(results) == 0 {
			continue
		}
		if len(results) != 1 || tc.want == "" || results[0].Status != preflight.Warn || !strings.HasPrefix(results[0].Problem(), tc.want) {
			t.Errorf("%s: %v, want %q", name, results, tc.want)
		}
	}
}
