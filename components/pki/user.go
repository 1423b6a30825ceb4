package pki

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// UserOptions say for whom EnsureUser makes credentials.
type UserOptions struct {
	Dir      string // of the files, and of nothing else
	Name     string // of the user, who is in no group
	CA       Pair   // the cluster's
	Server   string // URL of the API
	UID, GID int    // who may read the files
	Now      func() time.Time
}

// EnsureUser keeps a kubeconfig, and the certificate and key that it names, and returns its path. A program that reads
// the certificate's file again, as client-go does, never has to be started anew: call EnsureUser again in time.
func EnsureUser(opts UserOptions) (kubeconfig string, err error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return "", fmt.Errorf("pki: create directory: %w", err)
	}
	s := &store{dir: opts.Dir, now: opts.Now()}
	ca, err := s.authority(opts.CA, "kubelith-cluster-ca")
	if err != nil {
		return "", err
	}
	pair := s.pair("client")
	if err := s.ensureLeaf(leaf{pair: pair, ca: ca, cn: opts.Name, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return "", err
	}
	kubeconfig = filepath.Join(opts.Dir, "kubeconfig")
	if err := writeUserKubeconfig(kubeconfig, opts, pair); err != nil {
		return "", err
	}
	for _, path := range []string{kubeconfig, pair.Cert, pair.Key, opts.Dir} {
		if err := os.Chown(path, opts.UID, opts.GID); err != nil {
			return "", fmt.Errorf("pki: %w", err)
		}
	}
	return kubeconfig, nil
}

// writeUserKubeconfig names the pair by its files, as WriteKubeconfig does not: they are replaced while it is in use. They are
// relative, as the user may know the directory by another path.
func writeUserKubeconfig(path string, opts UserOptions, pair Pair) error {
	ca, err := os.ReadFile(opts.CA.Cert)
	if err != nil {
		return fmt.Errorf("pki: kubeconfig: %w", err)
	}
	const name = "kubelith"
	out, err := yaml.Marshal(clientcmdv1.Config{
		APIVersion:     "v1",
		Kind:           "Config",
		Clusters:       []clientcmdv1.NamedCluster{{Name: name, Cluster: clientcmdv1.Cluster{Server: opts.Server, CertificateAuthorityData: ca}}},
		AuthInfos:      []clientcmdv1.NamedAuthInfo{{Name: name, AuthInfo: clientcmdv1.AuthInfo{ClientCertificate: filepath.Base(pair.Cert), ClientKey: filepath.Base(pair.Key)}}},
		Contexts:       []clientcmdv1.NamedContext{{Name: name, Context: clientcmdv1.Context{Cluster: name, AuthInfo: name}}},
		CurrentContext: name,
	})
	if err != nil {
		return fmt.Errorf("pki: kubeconfig: encode: %w", err)
	}
	return WriteFile(path, out)
}
