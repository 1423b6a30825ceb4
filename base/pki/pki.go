// Package pki creates and keeps the keys and certificates of a server, the admin's kubeconfig, and the key that
// encrypts Secrets at rest.
//
// Ensure is called at every start. It creates what is missing, keeps what exists, and renews leaf certificates in time
// or when they must cover more names. Renewal keeps the key and replaces only the certificate, in one atomic rename, so
// that a crash never leaves a mismatched pair. It never overwrites a damaged or mismatched file: the error names it and
// says what to do.
//
// It opens no connection and knows no component; Bundle documents what each pair is for.
package pki

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"kubelith.io/kubelith/base/names"
)

const (
	caLife      = 10 * 365 * 24 * time.Hour
	leafLife    = 365 * 24 * time.Hour
	renewBefore = 90 * 24 * time.Hour
	// clockSkew is how far behind the clock of a peer may be when it sees a new certificate.
	clockSkew = 5 * time.Minute
)

// Options configure what the certificates are for.
type Options struct {
	Dir           string   // where the files are; created with mode 0700
	NodeName      string   // as registered in the cluster
	NodeIPs       []net.IP // of this node, external ones too
	SANs          []string // further DNS names and IP addresses of the apiserver
	ServiceIPs    []net.IP // of the Service "kubernetes"
	ClusterDomain string   // such as cluster.local
	Now           func() time.Time
	// Life is how long a leaf is valid; it is renewed when a third of that is left. 0: a year, and 90 days.
	Life time.Duration
}

// Pair has the paths of a certificate and its private key, both PEM.
type Pair struct{ Cert, Key string }

// Bundle has the paths of all files that Ensure keeps. Every file has mode 0600.
type Bundle struct {
	ClusterCA    Pair // signs certificates that prove an identity to the apiserver or the kubelet, and the API's serving certificate
	KubeletCA    Pair // signs only kubelets' serving certificates: they cannot pass for the apiserver, whatever address they report
	FrontProxyCA Pair // signs FrontProxyClient only
	PeerCA       Pair // signs Peer only: etcd members trust no other certificate

	// ClusterSigner and KubeletSigner have ClusterCA and KubeletCA, certificate and key in one file: a client that
	// follows it, as upstream's signers do, never sees the one of a pair and the other of the next.
	ClusterSigner, KubeletSigner string

	// ClusterTrust and FrontProxyTrust have the CAs that are trusted: ClusterCA and FrontProxyCA and, during a
	// Rotation, those of the other generation.
	ClusterTrust, FrontProxyTrust string
	KubeletTrust                  string // the CAs that kubelets are verified against: KubeletCA and, after an upgrade, ClusterCA (constrained)

	ServiceAccountKey string // ECDSA P-256 (ES256); the private key, which verifiers accept too

	APIServer Pair // serves the API
	// KubeletClient is how the apiserver calls kubelets: the user kube-apiserver-kubelet-client, in no group; it needs
	// a binding to the ClusterRole system:kubelet-api-admin.
	KubeletClient    Pair
	FrontProxyClient Pair // how the apiserver calls aggregated API servers: front-proxy-client
	KubeletServer    Pair // serves the kubelet's API, as system:node:NAME in system:nodes
	Peer             Pair // how etcd members of several servers know each other
	Admin            Pair // for the admin kubeconfig only: kubelith-admin in names.Admins

	Changed []string // base names of the files that this call created or renewed
	Exposed []string // paths of keys that other users could read before this call
}

// Ensure brings the files of opts.Dir into the desired state and returns their paths. Only one process may do so at a
// time.
func Ensure(opts Options) (*Bundle, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("pki: create directory: %w", err)
	}
	s := &store{dir: opts.Dir, now: opts.Now(), life: opts.Life}
	b := &Bundle{
		ClusterCA:         s.pair(clusterCA),
		KubeletCA:         s.pair(kubeletCA),
		FrontProxyCA:      s.pair(frontProxyCA),
		PeerCA:            s.pair("peer-ca"),
		ClusterSigner:     filepath.Join(opts.Dir, clusterCA+signer),
		KubeletSigner:     filepath.Join(opts.Dir, kubeletCA+signer),
		ClusterTrust:      filepath.Join(opts.Dir, ClusterTrustFile),
		FrontProxyTrust:   filepath.Join(opts.Dir, frontProxyTrustFile),
		KubeletTrust:      filepath.Join(opts.Dir, kubeletTrustFile),
		ServiceAccountKey: filepath.Join(opts.Dir, "service-account.key"),
		APIServer:         s.pair("apiserver"),
		KubeletClient:     s.pair("apiserver-kubelet-client"),
		FrontProxyClient:  s.pair("front-proxy-client"),
		// Not "kubelet-server", which the cluster's CA has signed in older clusters.
		KubeletServer: s.pair("kubelet-serving"),
		Peer:          s.pair("peer"),
		Admin:         s.pair("admin"),
	}
	const remedy = "restore it from a backup, or remove it to generate a new one, which invalidates every service account token"
	if _, err := s.key(b.ServiceAccountKey, remedy); err != nil {
		return nil, err
	}
	if err := s.ensureLeaves(b, opts); err != nil {
		return nil, err
	}
	b.Changed, b.Exposed = s.changed, s.exposed
	return b, s.dropUnused()
}

// EnsurePeer is Ensure for a witness, which has the keys that Place has written ForWitness: the Bundle has PeerCA and
// Peer only. It never creates the CA, which is the cluster's.
func EnsurePeer(opts Options) (*Bundle, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	s := &store{dir: opts.Dir, now: opts.Now(), life: opts.Life}
	b := &Bundle{PeerCA: s.pair("peer-ca"), Peer: s.pair("peer")}
	for _, path := range []string{b.PeerCA.Cert, b.PeerCA.Key} {
		if !exists(path) {
			return nil, fmt.Errorf("pki: %s is missing: restore it from a backup, or run kubelith reset --data and let the witness join again with a new token", path)
		}
	}
	ca, err := s.authority(b.PeerCA, peerCA)
	if err != nil {
		return nil, err
	}
	if err := s.ensureLeaf(peerLeaf(b.Peer, ca, opts)); err != nil {
		return nil, err
	}
	b.Changed, b.Exposed = s.changed, s.exposed
	return b, nil
}

// peerCA is the common name of the CA of etcd's members.
const peerCA = "kubelith-peer-ca"

// peerLeaf is the certificate of an etcd member to the others.
func peerLeaf(pair Pair, ca *authority, opts Options) leaf {
	names := altNames{}
	names.add(opts.NodeName)
	names.addIPs(opts.NodeIPs)
	names.add(opts.SANs...)
	return leaf{pair: pair, ca: ca, cn: opts.NodeName, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, names: names}
}

func (s *store) ensureLeaves(b *Bundle, opts Options) error {
	rotation, err := ReadRotation(s.dir)
	if err != nil {
		return err
	}
	if err := s.arrange(rotation); err != nil {
		return err
	}
	upgraded := exists(b.ClusterCA.Cert)
	cluster, err := s.authority(b.ClusterCA, "kubelith-cluster-ca")
	if err != nil {
		return err
	}
	kubelet, err := s.authority(b.KubeletCA, "kubelith-kubelet-ca")
	if err != nil {
		return err
	}
	var former *authority
	if upgraded {
		former = cluster
	}
	if rotation == nil {
		if err := s.ensureKubeletTrust(b.KubeletTrust, kubelet, former); err != nil {
			return err
		}
	}
	frontProxy, err := s.authority(b.FrontProxyCA, "kubelith-front-proxy-ca")
	if err != nil {
		return err
	}
	peer, err := s.authority(b.PeerCA, peerCA)
	if err != nil {
		return err
	}
	others, api := map[*authority][]*x509.Certificate{}, cluster
	if rotation != nil {
		for name, ca := range map[string]*authority{clusterCA: cluster, kubeletCA: kubelet, frontProxyCA: frontProxy} {
			if others[ca], err = s.generations(name); err != nil {
				return err
			}
		}
		if !rotation.Phase.Reached(Serve) { // clients that know the former CA only go on until then
			api, err = s.authority(s.pair(filepath.Join(formerDir, clusterCA)), "")
			others[api] = others[cluster]
		}
	}
	if err != nil {
		return err
	}
	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

	node := altNames{}
	node.add(opts.NodeName)
	node.addIPs(opts.NodeIPs)
	everywhere := node.clone()
	everywhere.add("localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc."+opts.ClusterDomain)
	everywhere.addIPs(opts.ServiceIPs)
	everywhere.add(opts.SANs...)

	for _, l := range []leaf{
		{pair: b.APIServer, ca: api, cn: "kube-apiserver", usage: server, names: everywhere},
		{pair: b.KubeletClient, ca: cluster, cn: names.KubeletClient, usage: client},
		{pair: b.FrontProxyClient, ca: frontProxy, cn: "front-proxy-client", usage: client},
		{pair: b.KubeletServer, ca: kubelet, cn: names.NodeUserPrefix + opts.NodeName, org: []string{"system:nodes"}, usage: server, names: node},
		peerLeaf(b.Peer, peer, opts),
		{pair: b.Admin, ca: cluster, cn: "kubelith-admin", org: []string{names.Admins}, usage: client},
	} {
		l.others = others[l.ca]
		if err := s.ensureLeaf(l); err != nil {
			return err
		}
	}
	if err := s.ensureSigners(); err != nil {
		return err
	}
	if rotation == nil {
		return s.ensureTrust()
	}
	return nil
}

// signer ends the name of a file with a CA and its key.
const signer = "-signer.pem"

// ensureSigners copies the CAs that sign for others, each with its key, into one file.
func (s *store) ensureSigners() error {
	for _, ca := range []string{clusterCA, kubeletCA} {
		files, err := readFiles(s.dir, []string{ca + ".crt", ca + ".key"})
		if err != nil {
			return err
		}
		if err := s.replace(ca+signer, slices.Concat(files[ca+".crt"], files[ca+".key"])); err != nil {
			return err
		}
	}
	return nil
}

// altNames are the subject alternative names of a certificate.
type altNames struct {
	dns []string
	ips []net.IP
}

// add takes each value as an address if it is one, else as a DNS name.
func (n *altNames) add(values ...string) {
	for _, v := range values {
		if ip := net.ParseIP(v); ip != nil {
			n.addIPs([]net.IP{ip})
		} else if v != "" && !slices.Contains(n.dns, v) {
			n.dns = append(n.dns, v)
		}
	}
}

func (n *altNames) addIPs(ips []net.IP) {
	for _, ip := range ips {
		if !slices.ContainsFunc(n.ips, ip.Equal) {
			n.ips = append(n.ips, ip)
		}
	}
}

func (n *altNames) clone() altNames { return altNames{slices.Clone(n.dns), slices.Clone(n.ips)} }

// coveredBy reports whether cert has all the names. It may have more: the next renewal drops a name that is no longer
// needed.
func (n *altNames) coveredBy(cert *x509.Certificate) bool {
	for _, d := range n.dns {
		if !slices.Contains(cert.DNSNames, d) {
			return false
		}
	}
	for _, ip := range n.ips {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}
