package compare

// The command lines of the peers. Settings that differ between composition and product are in tuned.

// tuned is what the composition has in common with Kubelith and the product leaves at upstream's default.
func (p *peers) tuned(args ...string) []string {
	if p.defaults {
		return nil
	}
	return args
}

func (p *peers) etcdArgs() []string {
	return append([]string{
		"--name=default",
		"--data-dir=/var/lib/etcd",
		"--listen-client-urls=https://127.0.0.1:2379", "--advertise-client-urls=https://127.0.0.1:2379",
		"--listen-peer-urls=https://127.0.0.1:2380", "--initial-advertise-peer-urls=https://127.0.0.1:2380",
		"--initial-cluster=default=https://127.0.0.1:2380",
		// Kubelith has no certificates for etcd: those of the API serve here. The gateway would call etcd with one that
		// only serves.
		"--cert-file=" + p.pki.APIServer.Cert, "--key-file=" + p.pki.APIServer.Key, "--enable-grpc-gateway=false",
		"--client-cert-auth", "--trusted-ca-file=" + p.pki.ClusterCA.Cert,
		"--peer-cert-file=" + p.pki.APIServer.Cert, "--peer-key-file=" + p.pki.APIServer.Key,
		"--peer-client-cert-auth", "--peer-trusted-ca-file=" + p.pki.ClusterCA.Cert,
	}, p.tuned("--quota-backend-bytes=4294967296", "--heartbeat-interval=20", "--election-timeout=100")...)
}

func (p *peers) apiserverArgs() []string {
	b := p.pki
	return append([]string{
		"--secure-port=6443", "--advertise-address=" + p.NodeIP,
		"--etcd-servers=https://127.0.0.1:2379", "--etcd-cafile=" + b.ClusterCA.Cert,
		"--etcd-certfile=" + b.KubeletClient.Cert, "--etcd-keyfile=" + b.KubeletClient.Key,
		"--tls-cert-file=" + b.APIServer.Cert, "--tls-private-key-file=" + b.APIServer.Key,
		"--client-ca-file=" + b.ClusterCA.Cert,
		"--requestheader-client-ca-file=" + b.FrontProxyCA.Cert, "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + b.FrontProxyClient.Cert, "--proxy-client-key-file=" + b.FrontProxyClient.Key,
		"--kubelet-client-certificate=" + b.KubeletClient.Cert, "--kubelet-client-key=" + b.KubeletClient.Key,
		"--kubelet-certificate-authority=" + b.KubeletTrust,
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + b.ServiceAccountKey, "--service-account-signing-key-file=" + b.ServiceAccountKey,
		"--service-cluster-ip-range=" + serviceCIDR,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged", "--enable-bootstrap-token-auth",
		"--encryption-provider-config=" + p.file("encryption.yaml"),
	}, p.tuned("--profiling=false", "--encryption-provider-config-automatic-reload")...)
}

func (p *peers) controllerManagerArgs() []string {
	return append([]string{
		"--kubeconfig=" + p.kubeconfigs["kube-controller-manager"],
		"--bind-address=127.0.0.1",
		"--tls-cert-file=" + p.pki.APIServer.Cert, "--tls-private-key-file=" + p.pki.APIServer.Key,
		"--use-service-account-credentials", // RBAC's bootstrap policy expects it, as kubeadm does
		"--allocate-node-cidrs", "--cluster-cidr=" + p.set.clusterCIDR, "--service-cluster-ip-range=" + serviceCIDR,
		"--root-ca-file=" + p.pki.ClusterCA.Cert, "--service-account-private-key-file=" + p.pki.ServiceAccountKey,
		"--cluster-signing-cert-file=" + p.pki.ClusterCA.Cert, "--cluster-signing-key-file=" + p.pki.ClusterCA.Key,
	}, p.tuned("--leader-elect=false", "--kube-api-qps=10000", "--kube-api-burst=20000", "--profiling=false")...)
}

func (p *peers) schedulerArgs() []string {
	return append([]string{
		"--kubeconfig=" + p.kubeconfigs["kube-scheduler"],
		"--bind-address=127.0.0.1",
		"--tls-cert-file=" + p.pki.APIServer.Cert, "--tls-private-key-file=" + p.pki.APIServer.Key,
	}, p.tuned("--leader-elect=false", "--kube-api-qps=10000", "--kube-api-burst=20000", "--profiling=false")...)
}

func (p *peers) kubeletArgs() []string {
	return []string{
		"--config=" + p.file("kubelet.yaml"),
		"--kubeconfig=" + p.kubeconfigs["kubelet"],
		"--hostname-override=" + p.nodeName, "--node-ip=" + p.NodeIP,
	}
}
