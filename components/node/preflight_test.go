package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/worker/cni"
	"kubelith.io/kubelith/components/worker/containerd"
	"kubelith.io/kubelith/host/preflight"
)

// planned is a valid configuration whose directories must not be created.
func planned(t *testing.T, change func(*config.Server)) *config.Server {
	t.Helper()
	cfg := config.Default()
	cfg.DataDir, cfg.RunDir, cfg.KubeletRootDir = filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "kubelet")
	cfg.NodeName, cfg.NodeIP, cfg.AdvertiseAddress = "one", []string{"192.0.2.1"}, "192.0.2.1"
	change(cfg)
	return cfg
}

// The ports that the preflight checks are those of the components as they are going to run.
func TestPorts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: 11250\nhealthzPort: 11248\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	usual := []string{"apiserver tcp 0.0.0.0:6443", "kubelet tcp 0.0.0.0:10250", "kubelet tcp 127.0.0.1:10248", "proxy tcp 0.0.0.0:10256",
		"dns tcp 127.0.0.1:10053", "dns udp 127.0.0.1:10053", "dns tcp 192.0.2.1:10053", "dns udp 192.0.2.1:10053"}
	for name, test := range map[string]struct {
		change    func(*config.Server)
		less, add []string
	}{
		"usual": {func(*config.Server) {}, nil, nil},
		"dual stack": {func(c *config.Server) {
			c.ClusterCIDR, c.ServiceCIDR = []string{"10.42.0.0/16", "fd42::/56"}, []string{"10.43.0.0/16", "fd43::/112"}
			c.NodeIP = []string{"192.0.2.1", "2001:db8::1"}
		}, nil, []string{"dns tcp ::1:10053", "dns udp ::1:10053", "dns tcp 2001:db8::1:10053", "dns udp 2001:db8::1:10053"}},
		"kubelet's address":   {func(c *config.Server) { c.KubeletArgs = config.Args{"address=192.0.2.1"} }, usual[1:2], []string{"kubelet tcp 192.0.2.1:10250"}},
		"kubelet's file":      {func(c *config.Server) { c.KubeletArgs = config.Args{"config=" + file} }, usual[1:3], []string{"kubelet tcp 0.0.0.0:11250", "kubelet tcp 127.0.0.1:11248"}},
		"no kubelet healthz":  {func(c *config.Server) { c.KubeletArgs = config.Args{"healthz_port=0"} }, usual[2:3], nil},
		"proxy moved":         {func(c *config.Server) { c.ProxyArgs = config.Args{"healthz-bind-address=192.0.2.1:77"} }, usual[3:4], []string{"proxy tcp 192.0.2.1:77"}},
		"no proxy, no dns":    {func(c *config.Server) { c.Disable = []string{"proxy", "dns"} }, usual[3:], nil},
		"control plane alone": {func(c *config.Server) { c.Disable = []string{"proxy", "dns", "kubelet", "containerd"} }, usual[1:], nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := planned(t, test.change)
			_, components, err := plan(cfg)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.DeleteFunc(slices.Clone(usual), func(p string) bool { return slices.Contains(test.less, p) })
			want = append(want, test.add...)
			var got []string
			for _, p := range ports(components) {
				got = append(got, fmt.Sprintf("%s %s %s:%d", p.Component, p.Network, p.Address, p.Number))
				if (p.Setting == "") != (p.Component == "dns") {
					t.Errorf("%s: the setting is %q", p.Component, p.Setting)
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			for _, dir := range []string{cfg.DataDir, cfg.RunDir, cfg.KubeletRootDir} {
				if _, err := os.Stat(dir); err == nil {
					t.Errorf("%s was created", dir)
				}
			}
		})
	}
}

// check reports wrong arguments, one line each, and still checks the host.
func TestPreflightArguments(t *testing.T) {
	cfg := planned(t, func(c *config.Server) {
		c.SchedulerArgs, c.KubeletArgs = config.Args{"confg=/x"}, config.Args{"image-credential-provider-config=/missing", "image-credential-provider-bin-dir=/"}
		c.ProxyArgs = config.Args{"healthz-bind-address=127.0.0.1:10277"}
	})
	var wrong []string
	others := 0
	var ports []string
	for _, r := range Preflight(t.Context(), cfg) {
		switch {
		case r.IsPort():
			ports = append(ports, r.Name)
		case r.Name != "arguments":
			others++
		case r.Status == preflight.Fail:
			wrong = append(wrong, r.String())
		}
	}
	want := []string{`failed   arguments: --scheduler-arg confg: unknown flag: did you mean "config"?`,
		"failed   arguments: --kubelet-arg image-credential-provider-config: stat /missing: no such file or directory: correct the path"}
	if !slices.Equal(wrong, want) || others == 0 {
		t.Errorf("got %q and %d other checks, want %q", wrong, others, want)
	}
	// The ports are those of the arguments that are right, and the usual ones of the others.
	for _, port := range []string{"port 6443/tcp", "port 10250/tcp", "port 10248/tcp", "port 10277/tcp", "port 10053/udp"} {
		if !slices.Contains(ports, port) {
			t.Errorf("no result for %s: %q", port, ports)
		}
	}
	faults := PreflightArguments(cfg)
	for _, r := range faults {
		if r.Status != preflight.Fail {
			t.Errorf("%v", r)
		}
	}
	if len(faults) != len(want) {
		t.Errorf("of the arguments alone: %v", faults)
	}
}

// Whatever the run directory, containerd's state directory is one with which it starts, and the longest such.
func TestRunDirLength(t *testing.T) {
	long := config.Node{RunDir: "/" + strings.Repeat("x", 200)}
	if got := len(long.SocketDir()) + len("/containerd"); got != containerd.MaxState {
		t.Errorf("with the longest run directory containerd's state directory has %d bytes, its limit is %d", got, containerd.MaxState)
	}
}

// The clock must be behind the build and behind the cluster's CA.
func TestNotBefore(t *testing.T) {
	cfg := planned(t, func(*config.Server) {})
	if _, err := ensureCertificates(planned(t, func(c *config.Server) { *c = *cfg; c.WriteKubeconfig = filepath.Join(t.TempDir(), "k") })); err != nil {
		t.Fatal(err)
	}
	opts := checkOptions(cfg, nil)
	if since := time.Since(opts.NotBefore); since < 0 || since > time.Hour || opts.NotBeforeOf != filepath.Join(cfg.DataDir, "server/tls/cluster-ca.crt")+" is valid from" {
		t.Errorf("%s %s", opts.NotBeforeOf, opts.NotBefore)
	}
	if opts = checkOptions(planned(t, func(*config.Server) {}), nil); opts.NotBeforeOf != "this program was built at" {
		t.Errorf("without certificates: %s", opts.NotBeforeOf)
	}
}

// Without kube-proxy the bridge still needs nft.
func TestNeedsPacketFilter(t *testing.T) {
	for want, change := range map[bool]func(*config.Server){
		true:  func(c *config.Server) { c.Disable = []string{"proxy"} },
		false: func(c *config.Server) { c.Disable = []string{"proxy"}; c.Network = "noop" },
	} {
		if opts := checkOptions(planned(t, change), nil); opts.Proxy || opts.Bridge != want {
			t.Errorf("proxy %v, bridge %v, want %v", opts.Proxy, opts.Bridge, want)
		}
	}
}

// Each value of the setting has a meaning on the node, and those that differ between nodes only have the same one.
func TestCNIMode(t *testing.T) {
	for setting, want := range map[string]cni.Mode{"vxlan": cni.Bridge, "host-gw": cni.Bridge, "bridge": cni.Bridge, "noop": cni.Noop, "none": cni.None} {
		if got := cniMode(setting); got != want {
			t.Errorf("%s: %s, want %s", setting, got, want)
		}
	}
}
