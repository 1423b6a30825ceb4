package badinput

import (
	"os"
	"strings"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// TestSettings: errors in flags and the file are reported before anything is created on the host.
func TestSettings(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	if err := os.MkdirAll(s.Path("/etc/kubelith"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{"/etc/kubelith/users.csv": 0o600, "/etc/kubelith/open.csv": 0o644} {
		if err := os.WriteFile(s.Path(path), []byte("secret,alice,1\nsecret,bob,2,team,ops\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	const head = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"
	const configured = "/etc/kubelith/config.yaml"
	for name, tc := range map[string]struct {
		file string // the configuration file
		args []string
		want []string
	}{
		"misspelt key":           {file: head + "nodeName: n\nclusterCdir: [10.1.0.0/16]\n", want: []string{configured + ":4: ", `"clusterCdir"`, `did you mean "clusterCIDR"?`}},
		"unknown key":            {file: head + "moonPhase: full\n", want: []string{configured + ":3: ", `unknown key "moonPhase"`}},
		"key given twice":        {file: head + "nodeName: a\nnodeName: b\n", want: []string{configured + ":4: ", `"nodeName"`, "line 3"}},
		"value of a wrong type":  {file: head + "httpsPort: high\n", want: []string{configured + ":3: ", "httpsPort", "number"}},
		"not YAML":               {file: head + "nodeName: [\n", want: []string{configured + ":", "not valid YAML"}},
		"other apiVersion":       {file: "apiVersion: kubelith.io/v9\nkind: ServerConfig\n", want: []string{configured + ":1: ", `"kubelith.io/v9"`, `use "kubelith.io/v1alpha1"`}},
		"other kind":             {file: "apiVersion: kubelith.io/v1alpha1\nkind: AgentConfig\n", want: []string{configured + ":2: ", `"AgentConfig"`, `use "ServerConfig"`}},
		"no apiVersion":          {file: "kind: ServerConfig\n", want: []string{configured, "apiVersion is missing"}},
		"file does not exist":    {args: []string{"--config=/etc/kubelith/other.yaml"}, want: []string{"/etc/kubelith/other.yaml", "not exist"}},
		"unknown flag":           {args: []string{"--cluster-cdir=10.1.0.0/16"}, want: []string{"cluster-cdir", "kubelith server --help"}},
		"argument":               {args: []string{"start"}, want: []string{`"start"`, "no arguments"}},
		"bad pod CIDR":           {args: []string{"--cluster-cidr=10.42.0.0/33"}, want: []string{"--cluster-cidr", `"10.42.0.0/33" is not a CIDR`}},
		"pod CIDR is an address": {args: []string{"--cluster-cidr=10.42.0.0"}, want: []string{"--cluster-cidr", `"10.42.0.0" is not a CIDR`}},
		"bad service CIDR":       {args: []string{"--service-cidr=ten"}, want: []string{"--service-cidr", `"ten" is not a CIDR`}},
		"overlapping CIDRs":      {args: []string{"--cluster-cidr=10.42.0.0/16", "--service-cidr=10.42.128.0/20"}, want: []string{"10.42.0.0/16", "10.42.128.0/20", "overlap"}},
		"overlap in the file":    {file: head + "clusterCIDR: [10.43.0.0/17]\n", want: []string{"10.43.0.0/17", "10.43.0.0/16", "overlap"}},
		"bad node IP":            {args: []string{"--node-ip=10.1.1"}, want: []string{"--node-ip", "10.1.1"}},
		"bad port":               {args: []string{"--https-port=70000"}, want: []string{"--https-port", "70000", "1 to 65535"}},
		"bad SAN":                {args: []string{"--tls-san=a b"}, want: []string{"--tls-san", "a b"}},
		"unknown network":        {args: []string{"--network=brigde"}, want: []string{"--network", `did you mean "bridge"?`}},
		"unknown log format":     {args: []string{"--log-format=xml"}, want: []string{"--log-format", `"xml"`, "text", "json"}},
		"unknown component":      {args: []string{"--disable=kublet"}, want: []string{"--disable", `"kublet"`, `did you mean "kubelet"?`}},
		"kubelet, no containerd": {args: []string{"--disable=containerd"}, want: []string{"--disable", "kubelet,containerd"}},
		"bad label":              {args: []string{"--node-label=a b=c"}, want: []string{"--node-label", `"a b=c"`}},
		"label without value":    {args: []string{"--node-label=disk"}, want: []string{"--node-label", `"disk"`, "KEY=VALUE"}},
		"reserved label":         {args: []string{"--node-label=node-role.kubernetes.io/worker=yes"}, want: []string{"--node-label", "node-role.kubernetes.io/worker", "kubectl label"}},
		"bad taint":              {args: []string{"--node-taint=a=b:Never"}, want: []string{"--node-taint", `"Never"`, "NoSchedule"}},
		"bad node name":          {args: []string{"--node-name=My_Node"}, want: []string{"--node-name", `"My_Node"`}},
		"upstream misspelt":      {args: []string{"--apiserver-arg=audit-log-paht=/tmp/x"}, want: []string{"--apiserver-arg", "audit-log-paht", `did you mean "audit-log-path"?`}},
		"kubelet flag misspelt":  {args: []string{"--kubelet-arg=max-pod=10"}, want: []string{"--kubelet-arg", `did you mean "max-pods"?`}},
		"scheduler misspelt":     {args: []string{"--scheduler-arg=confg=/x"}, want: []string{"--scheduler-arg", `did you mean "config"?`}},
		"controllers misspelt":   {args: []string{"--controller-manager-arg=node-monitor-periodd=1s"}, want: []string{"--controller-manager-arg", `did you mean "node-monitor-period"?`}},
		"proxy misspelt":         {args: []string{"--proxy-arg=masquerade-al=true"}, want: []string{"--proxy-arg", `did you mean "masquerade-all"?`}},
		"etcd misspelt":          {args: []string{"--etcd-arg=snapshot-coun=1"}, want: []string{"--etcd-arg", `did you mean "snapshot-count"?`}},
		"upstream value":         {args: []string{"--apiserver-arg=event-ttl=soon"}, want: []string{"--apiserver-arg", "event-ttl", "soon"}},
		"upstream without value": {args: []string{"--apiserver-arg=event-ttl"}, want: []string{"--apiserver-arg", "event-ttl", "no value"}},
		"owned by us: etcd":      {args: []string{"--apiserver-arg=etcd-servers=http://h"}, want: []string{"--apiserver-arg", "etcd-servers", "cannot be set: etcd is part of the process"}},
		"owned by us: port":      {args: []string{"--apiserver-arg=secure-port=1"}, want: []string{"--apiserver-arg", "secure-port", "--https-port"}},
		"owned by us: client":    {args: []string{"--scheduler-arg=kubeconfig=/x"}, want: []string{"--scheduler-arg", "kubeconfig", "in-process client"}},
		"owned by us: node IP":   {args: []string{"--kubelet-arg=node-ip=1.2.3.4"}, want: []string{"--kubelet-arg", "node-ip", "--node-ip"}},
		"owned by us: fsync":     {args: []string{"--etcd-arg=unsafe-no-fsync=true"}, want: []string{"--etcd-arg", "unsafe-no-fsync", "synced"}},
		"unknown feature gate":   {args: []string{"--apiserver-arg=feature-gates=Teleport=true"}, want: []string{"unrecognized feature gate Teleport"}},
		"misspelt feature gate":  {args: []string{"--kubelet-arg=feature-gates=PodLevelResorces=true"}, want: []string{"PodLevelResorces", `did you mean "PodLevelResources"?`}},
		"missing kubelet file":   {args: []string{"--kubelet-arg=image-credential-provider-config=/missing", "--kubelet-arg=image-credential-provider-bin-dir=/"}, want: []string{"--kubelet-arg image-credential-provider-config", "/missing", "correct the path"}},
		"modes without RBAC":     {args: []string{"--apiserver-arg=authorization-mode=Node,ABAC"}, want: []string{"--apiserver-arg authorization-mode", "RBAC is missing"}},
		"password file, line":    {args: []string{"--apiserver-arg=basic-auth-file=/etc/kubelith/users.csv"}, want: []string{"--apiserver-arg basic-auth-file: /etc/kubelith/users.csv: line 2: it has 5 fields"}},
		"password file, mode":    {args: []string{"--apiserver-arg=basic-auth-file=/etc/kubelith/open.csv"}, want: []string{"--apiserver-arg basic-auth-file: /etc/kubelith/open.csv: ", "(mode 0644)", "chmod 600 /etc/kubelith/open.csv"}},
		"password file, missing": {args: []string{"--apiserver-arg=basic-auth-file=/missing"}, want: []string{"--apiserver-arg basic-auth-file: ", "/missing: no such file"}},
		"burst without QPS":      {args: []string{"--proxy-arg=kube-api-burst=9"}, want: []string{"--proxy-arg kube-api-burst", "kube-api-qps"}},
		"gate with two values":   {args: []string{"--apiserver-arg=feature-gates=CBORServingAndStorage=true", "--kubelet-arg=feature-gates=CBORServingAndStorage=false"}, want: []string{"CBORServingAndStorage", "one set"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.file == "" {
				os.Remove(s.Path(configured))
			} else if err := os.WriteFile(s.Path(configured), []byte(tc.file), 0o644); err != nil {
				t.Fatal(err)
			}
			contains(t, refusal(t, s, s.BinaryCommand(append([]string{"server"}, tc.args...)...), true), tc.want...)
			for _, dir := range []string{harness.DataDir + "/version", harness.DataDir + "/data", harness.DataDir + "/server", harness.RunDir, harness.AdminKubeconfig} {
				if _, err := os.Stat(s.Path(dir)); err == nil {
					t.Errorf("%s was made", dir)
				}
			}
		})
	}
	t.Run("check", func(t *testing.T) {
		os.Remove(s.Path(configured))
		r := s.RunBinary(t, "check", "--scheduler-arg=confg=/x")
		if r.Code != 1 || !strings.Contains(r.Stdout, `failed   arguments: --scheduler-arg confg: unknown flag: did you mean "config"?`) {
			t.Errorf("%+v", r)
		}
	})
	t.Run("check says it whole", func(t *testing.T) {
		text := "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nnodeLables: [a=b]\nhttpsPort: \"6443\"\n"
		if err := os.WriteFile(s.Path(configured), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(s.Path(configured))
		r := s.RunBinary(t, "check", "--scheduler-arg=confg=/x", "--apiserver-arg=feature-gates=AtomicWriteVolumeUserFields=true")
		contains(t, r.Stdout, `config.yaml:3: unknown key "nodeLables": did you mean "nodeLabels"?`, "config.yaml:4: httpsPort must be a whole number",
			`--scheduler-arg confg: unknown flag`, "port 6443/tcp", "port 10250/tcp", "port 10053/udp")
		if r.Code != 1 || r.Stderr != "kubelith: 3 checks failed\n" {
			t.Errorf("exit code %d, stderr %q, stdout\n%s", r.Code, r.Stderr, r.Stdout)
		}
		// With a wrong value the host is not checked, but the arguments are.
		r = s.RunBinary(t, "check", "--service-cidr=x", "--scheduler-arg=confg=/x")
		contains(t, r.Stdout, "--service-cidr", "--scheduler-arg confg: unknown flag")
	})
	t.Run("version with a flag", func(t *testing.T) {
		contains(t, refusal(t, s, s.BinaryCommand("version", "--x"), true), "-x", "kubelith version --help")
		contains(t, refusal(t, s, s.BinaryCommand("version", "foo"), true), `"foo"`, "no arguments")
	})
	t.Run("unknown command", func(t *testing.T) {
		contains(t, refusal(t, s, s.BinaryCommand("sever"), true), `"sever"`, "--help")
	})
}
