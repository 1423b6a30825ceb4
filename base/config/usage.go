package config

import "maps"

// usages implements settings.
func (s *Server) usages() map[string]string {
	all := s.Node.usages()
	maps.Copy(all, s.S3.usages())
	maps.Copy(all, map[string]string{
		"write-kubeconfig": "file to write the admin kubeconfig to",

		"cluster-cidr":   "network of the pods, one per IP family",
		"service-cidr":   "network of the Services, one per IP family",
		"cluster-domain": "DNS domain of the cluster",
		"tls-san":        "further host name or address in the apiserver's certificate",
		"network": "pod network: vxlan, wireguard or host-gw (between nodes), bridge (on each node alone), " +
			"noop (host network only) or none (another CNI provider)",

		"bind-address":      "address on which the API is served",
		"advertise-address": "address at which others reach the API (default: the first node IP)",
		"https-port":        "port on which the API is served",
		"vip": "virtual address of the API, held by one of the servers: " +
			"an unused address of their common network; or none (default: that of the other servers)",

		"server":     "address of a server of the cluster to join, https://HOST:PORT",
		"token":      "token to join with, see kubelith token create --usages server; " + onCommandLine + "--token-file",
		"token-file": "file that holds the token to join with",
		"witness": "run etcd only, as the vote that makes two servers a safe pair: no API, no node; " +
			"it joins with --server and a token for servers",
		"join-token": "daily (a token for any number of machines is kept in DATA-DIR/server/token) " +
			"or none (only those of kubelith token create)",

		"etcd-arg":               "upstream flag of etcd, KEY=VALUE",
		"apiserver-arg":          "upstream flag of kube-apiserver, KEY=VALUE",
		"controller-manager-arg": "upstream flag of kube-controller-manager, KEY=VALUE",
		"scheduler-arg":          "upstream flag of kube-scheduler, KEY=VALUE",

		"snapshot-schedule":        "cron schedule of snapshots, or never",
		"snapshot-retention":       "how many scheduled snapshots are kept",
		"snapshot-dir":             "directory of snapshots (default: DATA-DIR/server/snapshots)",
		"snapshot-passphrase-file": "file with the passphrase that encrypts snapshots",
		"snapshot-recipient":       "age public key that snapshots are encrypted for",

		"profile": "hardening profile: cis follows the CIS Kubernetes Benchmark (default: none)",
	})
	return all
}

// onCommandLine is followed by the safer setting.
const onCommandLine = "others on this machine can read the command line: prefer the variable or "

// usages returns the help of the flags of S3.
func (s *S3) usages() map[string]string {
	return map[string]string{
		"snapshot-s3-endpoint":         "S3-compatible store that snapshots are copied to, HOST[:PORT]",
		"snapshot-s3-bucket":           "bucket for copies of snapshots; without it, none are made",
		"snapshot-s3-folder":           "folder in the bucket",
		"snapshot-s3-region":           "region of the bucket",
		"snapshot-s3-retention":        "how many scheduled snapshots are kept in the bucket; 0: as many as on the server",
		"snapshot-s3-credentials-file": "credentials file of the S3 account, in the AWS CLI's format",
		"snapshot-s3-access-key":       "access key of the S3 account",
		"snapshot-s3-secret-key":       "secret key of the S3 account; " + onCommandLine + "--snapshot-s3-credentials-file",
		"snapshot-s3-session-token":    "session token of the S3 account, for temporary credentials",
		"snapshot-s3-ca-file":          "file with the CA of the store's certificate (default: those of this machine)",
		"snapshot-s3-skip-tls-verify":  "accept any certificate of the store",
		"snapshot-s3-insecure":         "reach the store by HTTP, without TLS",
		"snapshot-s3-bucket-lookup":    "where requests name the bucket: path, dns (in the host name) or auto",
		"snapshot-s3-timeout":          "how long a request to the store may stall",
	}
}

// usages implements settings.
func (a *Agent) usages() map[string]string {
	all := a.Node.usages()
	maps.Copy(all, map[string]string{
		"server":     "address of a server, https://HOST:PORT",
		"token":      "token to join with, see kubelith token create; " + onCommandLine + "--token-file",
		"token-file": "file that holds the token to join with",
		"tunnel": "whether servers reach this node and its pods through a tunnel that the node opens: " +
			"auto (while they cannot connect to it), always or never",
	})
	return all
}

// usages returns the help of the flags of Node.
func (n *Node) usages() map[string]string {
	return map[string]string{
		"data-dir": "directory of the cluster's data",
		"run-dir":  "directory of sockets and of containerd's state; emptied by a reboot",
		"kubelet-root-dir": "directory of the kubelet, where CSI drivers find it " +
			"(device plugins always: /var/lib/kubelet/device-plugins)",

		"node-ip": "address of this node, one per IP family (default: that of the interface with the default route)",
		"node-external-ip": "address at which this node is reached from outside, one per IP family, " +
			"such as the public address of a NAT: the ExternalIP of its Node",
		"node-name":  "name of this node (default: the host name)",
		"node-label": "label of this node, KEY=VALUE, set when it registers",
		"node-taint": "taint of this node, KEY[=VALUE]:EFFECT, set when it registers",

		"default-runtime": "runtime of pods without a runtimeClassName: runc, or crun or youki of this host",
		"disable":         "component to switch off",
		"network-policy-log": "log packets that network policies drop, with pods and policies, " +
			"at most this many a second; 0 logs none",

		"log-format": "text or json",
		"log-level":  "error, warn, info, debug or trace; for some components as in info,kubelet=debug",
		"log-file": "file of the log, rotated at 10 MiB " +
			"(default: standard error; on a terminal a file in the run directory)",

		"trace-memory": "memory of the flight recorder in MiB, from 1; 0 switches it off",
		"trace-age":    "how long the flight recorder keeps what happened, as in 90m or 24h",
		"otlp-endpoint": "collector to which the flight recorder exports spans by OTLP: " +
			"http://HOST:4317 (gRPC without TLS) or https://HOST:4317",

		"kubelet-arg": "upstream flag of kubelet, KEY=VALUE",
		"proxy-arg":   "upstream flag of kube-proxy, KEY=VALUE",
	}
}
