package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// valid is a configuration without a problem.
func valid() *Server {
	s := Default()
	s.NodeName = "node-1.example"
	s.NodeIP = []string{"192.0.2.7"}
	s.NodeLabels = []string{"a=b", "example.com/x=", "node.kubernetes.io/y=z", "topology.kubernetes.io/zone=z1"}
	s.NodeTaints = []string{"a=b:NoSchedule", "example.com/a:NoExecute"}
	s.TLSSAN = []string{"api.example", "*.example", "192.0.2.9", "2001:db8::1"}
	s.Disable = []string{"kubelet", "containerd"}
	s.KubeletArgs = Args{"v=2", "feature-gates=A=true,B=false", "empty="}
	s.AdvertiseAddress = "192.0.2.7"
	return s
}

func TestValid(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Error(err)
	}
	long := valid()
	long.RunDir = "/" + strings.Repeat("x", 200)
	if err := long.Validate(); err != nil {
		t.Error(err)
	}
	dual := valid()
	dual.ClusterCIDR = []string{"10.42.0.0/16", "fd42::/56"}
	dual.ServiceCIDR = []string{"10.43.0.0/16", "fd43::/112"}
	dual.NodeIP = []string{"192.0.2.7", "2001:db8::7"}
	if err := dual.Validate(); err != nil {
		t.Error(err)
	}
	for _, network := range networks() {
		s := valid()
		s.Network = network
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
	}
	levels := valid()
	levels.LogLevel = "warn,kubelet=debug,controller-manager=trace"
	if err := levels.Validate(); err != nil {
		t.Error(err)
	}
	traced := valid()
	traced.TraceMemory, traced.TraceAge, traced.OTLPEndpoint = 1, "90m", "http://[2001:db8::1]:4317"
	if err := traced.Validate(); err != nil {
		t.Error(err)
	}
	if got := traced.Trace(); got.Bytes != 1<<20 || got.Age != 90*time.Minute {
		t.Errorf("the recorder's bounds are %+v", got)
	}
	if traced.TraceMemory = 0; traced.Trace() != nil {
		t.Error("a recorder that is switched off")
	}
	many := valid()
	many.Disable = many.disableable()
	if err := many.Validate(); err != nil {
		t.Error(err)
	}
	small := valid()
	small.ClusterCIDR = []string{"10.42.0.0/26"}
	small.ControllerManagerArgs = Args{"node-cidr-mask-size=27"}
	if err := small.Validate(); err != nil {
		t.Error(err)
	}
}

// A short link leads to the sockets of a run directory with a long path; its name depends only on the path.
func TestSocketDir(t *testing.T) {
	of := func(path string) string { return (&Node{RunDir: path}).SocketDir() }
	short, long := "/"+strings.Repeat("x", maxRunDir-1), "/"+strings.Repeat("x", maxRunDir)
	if of(short) != short {
		t.Errorf("%s became %s", short, of(short))
	}
	if got := of(long); len(got) != maxRunDir || !strings.HasPrefix(got, "/run/kubelith-") || got != of(long) || got == of(long+"y") {
		t.Errorf("%s became %s", long, got)
	}
	for path, same := range map[string]bool{"/run/a b,c=d": true, `/run/"a"`: false, `/run/a\b`: false, "/run/a&b": false, "/run/ä": false} {
		if got := of(path); (got == path) != same {
			t.Errorf("%s became %s: JSON writes it as it is: %t", path, got, same)
		}
	}
}

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Server)
		want   string
	}{
		"bad CIDR":         {func(s *Server) { s.ClusterCIDR = []string{"10.42.0.0/33"} }, `--cluster-cidr (clusterCIDR): "10.42.0.0/33" is not a CIDR: write a network`},
		"host bits":        {func(s *Server) { s.ServiceCIDR = []string{"10.43.0.1/16"} }, `--service-cidr (serviceCIDR): "10.43.0.1/16" is not written as a network: did you mean "10.43.0.0/16"?`},
		"not canonical":    {func(s *Server) { s.ServiceCIDR = []string{"FD43::/112"} }, `did you mean "fd43::/112"?`},
		"no CIDR":          {func(s *Server) { s.ClusterCIDR = nil }, `--cluster-cidr (clusterCIDR): is empty`},
		"two of a family":  {func(s *Server) { s.ClusterCIDR = []string{"10.42.0.0/16", "10.44.0.0/16"} }, `10.42.0.0/16 and 10.44.0.0/16 are both IPv4: give at most one per family`},
		"families":         {func(s *Server) { s.ServiceCIDR = []string{"fd43::/112"} }, `--service-cidr (serviceCIDR): its families (IPv6) are not those of --cluster-cidr (clusterCIDR) (IPv4)`},
		"overlap":          {func(s *Server) { s.ServiceCIDR = []string{"10.42.128.0/17"} }, `--service-cidr (serviceCIDR): 10.42.128.0/17 overlaps 10.42.0.0/16 of --cluster-cidr (clusterCIDR)`},
		"tiny services":    {func(s *Server) { s.ServiceCIDR = []string{"10.43.0.0/29"} }, `10.43.0.0/29 has only 8 addresses and the cluster DNS takes the tenth: use /28 or larger`},
		"tiny pods":        {func(s *Server) { s.ClusterCIDR = []string{"10.42.0.0/25"} }, `10.42.0.0/25 is too small, each node takes a /24 of it`},
		"large pods":       {func(s *Server) { s.ClusterCIDR = []string{"16.0.0.0/7"} }, `--cluster-cidr (clusterCIDR): 16.0.0.0/7 is too large to be cut into a /24 for each node: use /8 or smaller`},
		"node IP":          {func(s *Server) { s.NodeIP = []string{"192.0.2"} }, `--node-ip (nodeIP): "192.0.2" is not an IP address`},
		"node IP loopback": {func(s *Server) { s.NodeIP = []string{"127.0.0.1"} }, `127.0.0.1 cannot be a node's address`},
		"node IP twice":    {func(s *Server) { s.NodeIP = []string{"192.0.2.1", "192.0.2.2"} }, `more than one IPv4 address`},
		"node IP family":   {func(s *Server) { s.NodeIP = []string{"192.0.2.1", "2001:db8::1"} }, `2001:db8::1 is IPv6 but --cluster-cidr (clusterCIDR) has no IPv6 network`},
		"node IP only 2nd": {func(s *Server) {
			s.ClusterCIDR, s.ServiceCIDR = []string{"10.42.0.0/16", "fd42::/56"}, []string{"10.43.0.0/16", "fd43::/112"}
			s.NodeIP = []string{"2001:db8::1"}
		}, `--node-ip (nodeIP): has no IPv4 address, the family of the first network`},
		"node IP in pods":    {func(s *Server) { s.NodeIP = []string{"10.42.3.4"} }, `--cluster-cidr (clusterCIDR): 10.42.0.0/16 contains the node IP 10.42.3.4`},
		"node IP in service": {func(s *Server) { s.NodeIP = []string{"10.43.3.4"} }, `--service-cidr (serviceCIDR): 10.43.0.0/16 contains the node IP 10.43.3.4`},
		"external IP":        {func(s *Server) { s.NodeExternalIP = []string{"node.example"} }, `--node-external-ip (nodeExternalIP): "node.example" is not an IP address`},
		"external loopback":  {func(s *Server) { s.NodeExternalIP = []string{"::1"} }, `--node-external-ip (nodeExternalIP): ::1 cannot be a node's address`},
		"external IP twice":  {func(s *Server) { s.NodeExternalIP = []string{"203.0.113.1", "203.0.113.2"} }, `--node-external-ip (nodeExternalIP): more than one IPv4 address`},
		"external IP family": {func(s *Server) { s.NodeExternalIP = []string{"2001:db8::1"} }, `--node-external-ip (nodeExternalIP): 2001:db8::1 is IPv6 but --cluster-cidr (clusterCIDR) has no IPv6 network`},
		"external in pods":   {func(s *Server) { s.NodeExternalIP = []string{"10.42.3.4"} }, `--cluster-cidr (clusterCIDR): 10.42.0.0/16 contains the external node IP 10.42.3.4`},
		"SAN":                {func(s *Server) { s.TLSSAN = []string{"a_b"} }, `--tls-san (tlsSAN): "a_b" is neither an IP address nor a DNS name`},
		"domain":             {func(s *Server) { s.ClusterDomain = "cluster.local." }, `--cluster-domain (clusterDomain): "cluster.local." is not a DNS domain`},
		"bind address":       {func(s *Server) { s.BindAddress = "eth0" }, `--bind-address (bindAddress): "eth0" is not an IP address`},
		"virtual":            {func(s *Server) { s.VIP = "192.0.2" }, `--vip (vip): "192.0.2" is not an IP address`},
		"virtual, a pod's":   {func(s *Server) { s.VIP = "10.42.0.9" }, `--vip (vip): 10.42.0.9 is in 10.42.0.0/16, one of the cluster's networks`},
		"virtual, loopback":  {func(s *Server) { s.VIP = "127.0.0.2" }, `--vip (vip): clients cannot reach 127.0.0.2`},
		"virtual, own":       {func(s *Server) { s.VIP = s.NodeIP[0] }, `is this server's own address`},
		"virtual, bound":     {func(s *Server) { s.VIP, s.BindAddress = "192.0.2.200", "192.0.2.7" }, `the API is served at 192.0.2.7 only`},
		"advertise":          {func(s *Server) { s.AdvertiseAddress = "0.0.0.0" }, `--advertise-address (advertiseAddress): others cannot reach 0.0.0.0`},
		"advertise family":   {func(s *Server) { s.AdvertiseAddress = "2001:db8::1" }, `2001:db8::1 is IPv6 but the first service CIDR is IPv4`},
		"kubelet in data":    {func(s *Server) { s.KubeletRootDir = s.DataDir + "/kubelet" }, `--kubelet-root-dir (kubeletRootDir): "/var/lib/kubelith/kubelet" is in "/var/lib/kubelith", the directory of --data-dir (dataDir): name one beside it`},
		"data in run":        {func(s *Server) { s.DataDir = s.RunDir + "/x/../d/" }, `is in "/run/kubelith", the directory of --run-dir`},
		"kubelet is run":     {func(s *Server) { s.KubeletRootDir = s.RunDir + "/" }, `--run-dir (runDir): is the same directory as --kubelet-root-dir`},
		"port":               {func(s *Server) { s.HTTPSPort = 65536 }, `--https-port (httpsPort): 65536 is not a port: use 1 to 65535`},
		"node name":          {func(s *Server) { s.NodeName = "Node_1" }, `--node-name (nodeName): "Node_1" cannot be a node's name`},
		"long node name":     {func(s *Server) { s.NodeName = strings.Repeat("a.", 32) + "a" }, `cannot be a node's name`},
		"machine's label":    {func(s *Server) { s.NodeLabels = []string{"kubelith.io/machine=x"} }, `--node-label (nodeLabels): kubelith sets the label "kubelith.io/machine" itself: use another key`},
		"own label":          {func(s *Server) { s.NodeLabels = []string{"kubelith.io/role=x"} }, `--node-label (nodeLabels): kubelith sets the label "kubelith.io/role" itself: use another key`},
		"label":              {func(s *Server) { s.NodeLabels = []string{"a"} }, `--node-label (nodeLabels): "a" is not a label: write KEY=VALUE`},
		"label key":          {func(s *Server) { s.NodeLabels = []string{"-=b"} }, `"-=b" has no valid label key`},
		"label value":        {func(s *Server) { s.NodeLabels = []string{"a=b c"} }, `"a=b c" has no valid label value`},
		"reserved label":     {func(s *Server) { s.NodeLabels = []string{"node-role.kubernetes.io/worker="} }, `a node may not set the label "node-role.kubernetes.io/worker" on itself`},
		"taint":              {func(s *Server) { s.NodeTaints = []string{"a=b"} }, `--node-taint (nodeTaints): "a=b" is not a taint (it has no effect)`},
		"taint effect":       {func(s *Server) { s.NodeTaints = []string{"a=b:Never"} }, `unknown effect "Never"`},
		"taint key":          {func(s *Server) { s.NodeTaints = []string{"=b:NoExecute"} }, `is not a taint (key: `},
		"disable":            {func(s *Server) { s.Disable = []string{"kublet"} }, `--disable (disable): "kublet" is not a component that can be disabled: did you mean "kubelet"?`},
		"disable other":      {func(s *Server) { s.Disable = []string{"etcd"} }, `"etcd" is not a component that can be disabled: use one of containerd, `},
		"disable containerd": {func(s *Server) { s.Disable = []string{"containerd"} }, `--disable (disable): the kubelet cannot run without containerd: disable both`},
		"default runtime":    {func(s *Server) { s.DefaultRuntime = "crum" }, `--default-runtime (defaultRuntime): unknown value "crum": did you mean "crun"?`},
		"label of a runtime": {func(s *Server) { s.NodeLabels = []string{"kubelith.io/runtime-crun=true"} }, `kubelith sets the label "kubelith.io/runtime-crun" itself`},
		"join token":         {func(s *Server) { s.JoinToken = "nome" }, `--join-token (joinToken): unknown value "nome": did you mean "none"?`},
		"network":            {func(s *Server) { s.Network = "brigde" }, `--network (network): unknown value "brigde": did you mean "bridge"?`},
		"log format":         {func(s *Server) { s.LogFormat = "xml" }, `--log-format (logFormat): unknown value "xml": use one of text, json`},
		"unknown component":  {func(s *Server) { s.LogLevel = "info,kubelte=debug" }, `--log-level (logLevel): "kubelte" is not a component of the log: did you mean "kubelet"?`},
		"level of component": {func(s *Server) { s.LogLevel = "info,kubelet=loud" }, `--log-level (logLevel): unknown value "loud": use one of error, warn, info, debug, trace`},
		"two levels":         {func(s *Server) { s.LogLevel = "info,debug" }, `--log-level (logLevel): "info,debug" sets two levels for the same component: set one`},
		"log file":           {func(s *Server) { s.LogFile = "kubelith.log" }, `--log-file (logFile): "kubelith.log" is not an absolute path: begin it with /`},
		"log level":          {func(s *Server) { s.LogLevel = "warning" }, `--log-level (logLevel): unknown value "warning": did you mean "warn"?`},
		"arg":                {func(s *Server) { s.EtcdArgs = Args{"v"} }, `--etcd-arg (etcdArgs): "v" has no value: write "v=VALUE", or "v=true" if it is a switch`},
		"arg with dashes":    {func(s *Server) { s.SchedulerArgs = Args{"--v=2"} }, `--scheduler-arg (schedulerArgs): "--v=2" begins with a dash: write "v=2"`},
		"arg without key":    {func(s *Server) { s.ProxyArgs = Args{"=2"} }, `--proxy-arg (proxyArgs): "=2" is not of the form KEY=VALUE`},
		"empty path":         {func(s *Server) { s.DataDir = "" }, `--data-dir (dataDir): is empty`},
		"relative path":      {func(s *Server) { s.DataDir = "x" }, `"x" is not an absolute path`},
		"root":               {func(s *Server) { s.RunDir = "//" }, `--run-dir (runDir): cannot be the root directory`},
		"long kubelet dir":   {func(s *Server) { s.KubeletRootDir = "/" + strings.Repeat("x", 63) }, `is 64 bytes long and holds unix sockets: use a path of at most 63 bytes`},
		"trace memory":       {func(s *Server) { s.TraceMemory = -1 }, `--trace-memory (traceMemory): -1 is not a size in MiB: use 1 to 1048576, or 0 to switch the flight recorder off`},
		"trace age":          {func(s *Server) { s.TraceAge = "1 day" }, `--trace-age (traceAge): "1 day" is not a duration of at least a minute: write it as in 90m or 24h`},
		"short trace age":    {func(s *Server) { s.TraceAge = "59s" }, `"59s" is not a duration of at least a minute`},
		"collector":          {func(s *Server) { s.OTLPEndpoint = "h:4317" }, `--otlp-endpoint (otlpEndpoint): "h:4317" is not the URL of a collector: write http://HOST:4317, or https://HOST:4317 with TLS`},
		"collector's path":   {func(s *Server) { s.OTLPEndpoint = "http://h:4318/v1/traces" }, `has a path, which OTLP by gRPC does not have: write http://h:4318`},
		"collector's port":   {func(s *Server) { s.OTLPEndpoint = "https://h" }, `has no port: collectors usually listen on 4317, as in https://h:4317`},
		"too many lines":     {func(s *Server) { s.NetworkPolicyLog = 1001 }, `1001 is not a number of lines a second from 0 to 1000`},
		"nothing to log":     {func(s *Server) { s.NetworkPolicyLog, s.Disable = 1, []string{"network-policy"} }, `has nothing to log: network policies are switched off by --disable (disable)`},
		"nothing to export":  {func(s *Server) { s.OTLPEndpoint, s.TraceMemory = "http://h:4317", 0 }, `has nothing to export: the flight recorder is switched off by --trace-memory (traceMemory)`},
		"name of a bucket":   {func(s *Server) { s.SnapshotS3Bucket = "My" }, `--snapshot-s3-bucket (snapshotS3Bucket): "My" cannot be the name of a bucket`},
		"URL of a store":     {func(s *Server) { s.SnapshotS3Bucket, s.SnapshotS3Endpoint = "abc", "https://h" }, `--snapshot-s3-endpoint (snapshotS3Endpoint): "https://h" is not HOST[:PORT]: leave out the scheme and the path`},
		"folder in a bucket": {func(s *Server) { s.SnapshotS3Bucket, s.SnapshotS3Folder = "abc", "a//b" }, `--snapshot-s3-folder (snapshotS3Folder): "a//b" cannot be a folder`},
		"half of the keys":   {func(s *Server) { s.SnapshotS3Bucket, s.SnapshotS3AccessKey = "abc", "k" }, `belong together: set both or neither`},
		"bucket lookup":      {func(s *Server) { s.SnapshotS3BucketLookup = "host" }, `--snapshot-s3-bucket-lookup (snapshotS3BucketLookup): unknown value "host": use one of auto, dns, path`},
		"timeout of a store": {func(s *Server) { s.SnapshotS3Timeout = "5" }, `--snapshot-s3-timeout (snapshotS3Timeout): "5" is not a duration of at least a second`},
		"retention there":    {func(s *Server) { s.SnapshotS3Retention = -1 }, `--snapshot-s3-retention (snapshotS3Retention): -1 snapshots cannot be kept`},
		"same directory":     {func(s *Server) { s.RunDir = s.DataDir + "/" }, `--run-dir (runDir): is the same directory as --data-dir (dataDir)`},
	} {
		t.Run(name, func(t *testing.T) {
			s := valid()
			s.AdvertiseAddress = ""
			tc.change(s)
			err := s.Validate()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v\nwant  %s", err, tc.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("one mistake, several lines:\n%s", err)
			}
		})
	}
}

func TestSeveralProblems(t *testing.T) {
	s := valid()
	s.HTTPSPort = 0
	s.LogFormat = "xml"
	if err := s.Validate(); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("want two lines, got %v", err)
	}
}

func TestDerived(t *testing.T) {
	s := Default()
	s.ServiceCIDR = []string{"10.43.0.0/16", "fd43::/112"}
	s.NodeIP = []string{"192.0.2.7"}
	got := fmt.Sprintln(s.APIServiceIPs(), s.ClusterDNS(), s.NodeIPs(), s.URL())
	want := "[10.43.0.1 fd43::1] [10.43.0.10 fd43::a] [192.0.2.7] https://127.0.0.1:6443\n"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.AdvertiseAddress = "192.0.2.7"
	if got := s.APIAddresses(); !slices.Equal(got, []string{"192.0.2.7"}) {
		t.Errorf("served on all addresses, the API has %v", got)
	}
	s.BindAddress = "2001:db8::1"
	if s.URL() != "https://[2001:db8::1]:6443" {
		t.Error(s.URL())
	}
	if got := s.APIAddresses(); !slices.Equal(got, []string{"192.0.2.7", "2001:db8::1"}) {
		t.Errorf("served on one address, the API has %v", got)
	}
}

func TestNodeIP(t *testing.T) {
	pods := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}
	ip := netip.MustParseAddr
	addrs := []address{{1, ip("127.0.0.1")}, {9, ip("10.42.0.1")}, {2, ip("192.0.2.2")}, {3, ip("192.0.2.3")}, {3, ip("192.0.2.4")}}
	for name, tc := range map[string]struct {
		host host
		want string
	}{
		"default route":          {host{[]route{{link: 3}}, addrs}, "192.0.2.3"},
		"route's source":         {host{[]route{{link: 3, source: ip("192.0.2.4")}}, addrs}, "192.0.2.4"},
		"lowest metric":          {host{[]route{{link: 2, metric: 100}, {link: 3, metric: 50}}, addrs}, "192.0.2.3"},
		"route without address":  {host{[]route{{link: 8}}, addrs}, "192.0.2.2"},
		"route through a bridge": {host{[]route{{link: 9}}, addrs}, "192.0.2.2"},
		"no route":               {host{nil, addrs}, "192.0.2.2"},
		"nothing":                {host{nil, addrs[:2]}, "invalid IP"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.host.nodeIP(pods); got.String() != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestDetectNodeIPsRefusesBadCIDR(t *testing.T) {
	if _, err := DetectNodeIPs([]string{"x"}); err == nil || !strings.Contains(err.Error(), "--cluster-cidr") {
		t.Errorf("error %v", err)
	}
}
