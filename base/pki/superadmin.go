package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// SuperAdminLife is the longest life of SuperAdmin's kubeconfig: its rights cannot be revoked.
const SuperAdminLife = 7 * 24 * time.Hour

// SuperAdmin returns a kubeconfig in system:masters, whose rights are built into the apiserver, for the API at server.
// It gives access when RBAC refuses the administrator, and is stored nowhere. dir is that of Ensure, which must have
// been called.
func SuperAdmin(dir, server string, now time.Time, life time.Duration) ([]byte, error) {
	if life <= 0 || life > SuperAdminLife {
		return nil, fmt.Errorf("lifetime %s is not allowed: use a positive one of at most %s", life, SuperAdminLife)
	}
	s := &store{dir: dir, now: now}
	pair := s.pair(clusterCA)
	if !exists(pair.Cert) {
		return nil, fmt.Errorf("%s does not exist: run this as root on the server, with its --data-dir", pair.Cert)
	}
	ca, err := s.authority(pair, "kubelith-cluster-ca")
	if err != nil {
		return nil, err
	}
	der, key, err := ca.client(pkix.Name{CommonName: "kubelith-super-admin", Organization: []string{"system:masters"}}, now, life)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("pki: encode the key: %w", err)
	}
	trust := filepath.Join(dir, ClusterTrustFile)
	if !exists(trust) { // the server has not started since an upgrade
		trust = pair.Cert
	}
	caPEM, err := os.ReadFile(trust)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return yaml.Marshal(inlineKubeconfig(server, caPEM,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})))
}

// inlineKubeconfig has everything inline.
func inlineKubeconfig(server string, ca, cert, key []byte) clientcmdv1.Config {
	const name = "kubelith"
	return clientcmdv1.Config{
		APIVersion:     "v1",
		Kind:           "Config",
		Clusters:       []clientcmdv1.NamedCluster{{Name: name, Cluster: clientcmdv1.Cluster{Server: server, CertificateAuthorityData: ca}}},
		AuthInfos:      []clientcmdv1.NamedAuthInfo{{Name: name, AuthInfo: clientcmdv1.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}}},
		Contexts:       []clientcmdv1.NamedContext{{Name: name, Context: clientcmdv1.Context{Cluster: name, AuthInfo: name}}},
		CurrentContext: name,
	}
}

// Dir is where a server keeps Ensure's files, below its data directory.
func Dir(dataDir string) string { return filepath.Join(dataDir, "server", "tls") }
