package config

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// validAgent is a configuration without a problem.
func validAgent() *Agent {
	a := DefaultAgent()
	a.NodeName, a.NodeIP = "node-2", []string{"192.0.2.8"}
	a.Server, a.Token = "https://192.0.2.7:6443", "kl1_x"
	a.Disable = []string{"dns", "network", "proxy"}
	return a
}

func TestValidAgent(t *testing.T) {
	for _, server := range []string{"https://192.0.2.7:6443", "https://[2001:db8::7]:6443", "https://api.example:443/"} {
		a := validAgent()
		a.Server = server
		if err := a.Validate(); err != nil {
			t.Errorf("%s: %v", server, err)
		}
	}
	a := validAgent()
	a.Token = "" // it has joined already
	if err := a.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Agent)
		want   string
	}{
		"no server":         {func(a *Agent) { a.Server = "" }, `--server (server): is empty: write https://HOST:PORT`},
		"no scheme":         {func(a *Agent) { a.Server = "192.0.2.7:6443" }, `"192.0.2.7:6443" is not an https address: write https://HOST:PORT`},
		"http":              {func(a *Agent) { a.Server = "http://192.0.2.7:6443" }, `is not an https address`},
		"no host":           {func(a *Agent) { a.Server = "https://:6443" }, `is not an https address`},
		"no port":           {func(a *Agent) { a.Server = "https://192.0.2.7" }, `"https://192.0.2.7" has no port`},
		"port 0":            {func(a *Agent) { a.Server = "https://192.0.2.7:0" }, `has an invalid port`},
		"large port":        {func(a *Agent) { a.Server = "https://192.0.2.7:65536" }, `has an invalid port`},
		"path":              {func(a *Agent) { a.Server = "https://h:1/x" }, `has more than a host and a port`},
		"user":              {func(a *Agent) { a.Server = "https://u@h:1" }, `has more than a host and a port`},
		"two tokens":        {func(a *Agent) { a.TokenFile = "/t" }, `--token (token): --token-file (tokenFile) is set as well: set only one of them`},
		"token file":        {func(a *Agent) { a.Token, a.TokenFile = "", "x" }, `--token-file (tokenFile): "x" is not an absolute path`},
		"node name":         {func(a *Agent) { a.NodeName = "A" }, `--node-name (nodeName): "A" cannot be a node's name`},
		"node IP":           {func(a *Agent) { a.NodeIP = []string{"127.0.0.1"} }, `127.0.0.1 cannot be a node's address`},
		"label of Kubelith": {func(a *Agent) { a.NodeLabels = []string{"kubelith.io/servicelb=true"} }, `--node-label (nodeLabels): an agent may not set the label "kubelith.io/servicelb" on itself: set it on the server with kubelith kubectl label node`},
		"label":             {func(a *Agent) { a.NodeLabels = []string{"a"} }, `--node-label (nodeLabels): "a" is not a label`},
		"disable":           {func(a *Agent) { a.Disable = []string{"kubelet"} }, `"kubelet" is not a component that can be disabled: use one of dns, local-storage, network, network-policy, proxy`},
		"tunnel":            {func(a *Agent) { a.Tunnel = "alway" }, `--tunnel (tunnel): unknown value "alway": did you mean "always"?`},
		"log":               {func(a *Agent) { a.LogLevel = "warning" }, `--log-level (logLevel): unknown value "warning": did you mean "warn"?`},
		"arg":               {func(a *Agent) { a.KubeletArgs = Args{"v"} }, `--kubelet-arg (kubeletArgs): "v" has no value`},
		"directories alike": {func(a *Agent) { a.RunDir = a.DataDir }, `--run-dir (runDir): is the same directory as --data-dir (dataDir)`},
	} {
		t.Run(name, func(t *testing.T) {
			a := validAgent()
			tc.change(a)
			err := a.Validate()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v\nwant  %s", err, tc.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("one mistake, several lines:\n%s", err)
			}
		})
	}
}

func TestClusterInfo(t *testing.T) {
	s := valid()
	s.ClusterCIDR, s.ServiceCIDR = []string{"10.42.0.0/16", "fd42::/56"}, []string{"10.43.0.0/16", "fd43::/112"}
	text, err := json.Marshal(s.ClusterInfo("v1.37.1", "v0.3.0"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseClusterInfo(text)
	if err != nil {
		t.Fatal(err)
	}
	want := &ClusterInfo{APIVersion: "kubelith.io/v1alpha1", Kind: "ClusterInfo",
		ClusterCIDR: s.ClusterCIDR, ServiceCIDR: s.ServiceCIDR, ClusterDomain: "cluster.local", ClusterDNS: []string{"10.43.0.10", "fd43::a"},
		Network: "vxlan", KubernetesVersion: "v1.37.1", KubelithVersion: "v0.3.0"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
	for text, want := range map[string]string{
		"{": "cannot be decoded",
		`{"apiVersion":"kubelith.io/v2","kind":"ClusterInfo"}`:        "install the server's version",
		`{"apiVersion":"kubelith.io/v1alpha1","kind":"ClusterInfo"}`:  "have no networks",
		`{"apiVersion":"kubelith.io/v1alpha1","kind":"ServerConfig"}`: "install the server's version",
	} {
		if _, err := ParseClusterInfo([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
}

func TestValidateIn(t *testing.T) {
	v4 := &ClusterInfo{ClusterCIDR: []string{"10.42.0.0/16"}, ServiceCIDR: []string{"10.43.0.0/16"}}
	dual := &ClusterInfo{ClusterCIDR: []string{"10.42.0.0/16", "fd42::/56"}, ServiceCIDR: []string{"10.43.0.0/16", "fd43::/112"}}
	for _, tc := range []struct {
		cluster *ClusterInfo
		ips     []string
		want    string
	}{
		{v4, []string{"192.0.2.8"}, ""},
		{dual, []string{"192.0.2.8", "2001:db8::8"}, ""},
		{dual, []string{"192.0.2.8"}, ""},
		{v4, []string{"192.0.2.8", "2001:db8::8"}, "2001:db8::8 is IPv6 and the cluster has no IPv6 network"},
		{dual, []string{"2001:db8::8"}, "has no IPv4 address"},
		{v4, []string{"10.42.3.4"}, "10.42.3.4 is in 10.42.0.0/16"},
		{v4, []string{"10.43.3.4"}, "10.43.3.4 is in 10.43.0.0/16"},
	} {
		a := validAgent()
		a.NodeIP = tc.ips
		err := a.ValidateIn(tc.cluster)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v in %v: error %v, want %q", tc.ips, tc.cluster.ClusterCIDR, err, tc.want)
		}
	}
	a := validAgent()
	a.NodeIP, a.NodeExternalIP = []string{"192.0.2.8"}, []string{"10.43.3.4"}
	if err := a.ValidateIn(v4); err == nil || !strings.Contains(err.Error(), "--node-external-ip (nodeExternalIP): 10.43.3.4 is in 10.43.0.0/16") {
		t.Errorf("an external address in the network of Services: %v", err)
	}
	if a.NodeExternalIP = []string{"203.0.113.1"}; a.ValidateIn(dual) != nil {
		t.Error("an external address is refused")
	}
}

// TestAdopt: a server takes from the cluster that it joins the settings that its own configuration lacks.
func TestAdopt(t *testing.T) {
	cluster := &ClusterInfo{ClusterCIDR: []string{"10.1.0.0/16"}, ServiceCIDR: []string{"10.2.0.0/16"}, ClusterDomain: "c.example", Network: "host-gw", Profile: "cis"}
	for name, tc := range map[string]struct {
		change func(*Server)
		want   []string // in the lines of the error
	}{
		"defaults":     {func(*Server) {}, nil},
		"the same":     {func(s *Server) { s.ClusterCIDR, s.Network = []string{"10.1.0.0/16"}, "host-gw" }, nil},
		"another CIDR": {func(s *Server) { s.ClusterCIDR = []string{"10.9.0.0/16"} }, []string{"--cluster-cidr (clusterCIDR): 10.9.0.0/16"}},
		"two others":   {func(s *Server) { s.ClusterDomain, s.Network = "x", "bridge" }, []string{"--cluster-domain", "--network"}},
	} {
		s := Default()
		tc.change(s)
		err := s.Adopt(cluster)
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
		if got := s.ClusterInfo("", ""); err == nil && (got.ClusterCIDR[0] != "10.1.0.0/16" || got.ServiceCIDR[0] != "10.2.0.0/16" || got.ClusterDomain != "c.example" || got.Network != "host-gw" || got.Profile != "cis") {
			t.Errorf("%s: adopted %+v", name, got)
		}
	}
}

// TestAdoptVIP: a server has the virtual address of the cluster that it joins, unless it is to carry none.
func TestAdoptVIP(t *testing.T) {
	for _, tc := range []struct {
		own, cluster, want string
		adopted, refused   bool
	}{
		{"", "192.0.2.9", "192.0.2.9", true, false},
		{"", "", "", false, false},
		{"192.0.2.9", "192.0.2.9", "192.0.2.9", false, false},
		{"192.0.2.8", "192.0.2.9", "192.0.2.8", false, true},
		{"192.0.2.8", "", "192.0.2.8", false, true},
		{VIPNone, "192.0.2.9", VIPNone, false, false},
	} {
		s, def := Default(), Default()
		s.VIP = tc.own
		cluster := &ClusterInfo{ClusterCIDR: def.ClusterCIDR, ServiceCIDR: def.ServiceCIDR, ClusterDomain: def.ClusterDomain, Network: def.Network, VIP: tc.cluster}
		if err := s.SameVIP(cluster); (err != nil) != tc.refused {
			t.Errorf("%+v: %v", tc, err)
		}
		if err := s.Adopt(cluster); err != nil || s.VIP != tc.want || s.VIPAdopted != tc.adopted {
			t.Errorf("%+v: %q, adopted %t, %v", tc, s.VIP, s.VIPAdopted, err)
		}
	}
}
