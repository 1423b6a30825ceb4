package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/names"
)

// Recipient is which machine gets keys of the cluster.
type Recipient int

// The recipients: a server gets all keys, a witness those of etcd's members.
const (
	ForServer Recipient = iota
	ForWitness
)

// shared are the files that a machine has in common with the cluster's servers; it generates the others itself.
func shared(to Recipient) []string {
	if to == ForWitness {
		return []string{"peer-ca.crt", "peer-ca.key"}
	}
	return []string{
		ClusterCAFile, clusterCA + ".key", kubeletCA + ".crt", kubeletCA + ".key", kubeletTrustFile,
		frontProxyCA + ".crt", frontProxyCA + ".key", "peer-ca.crt", "peer-ca.key", "service-account.key",
	}
}

// Shared returns what another machine of the cluster needs of the directory of Ensure, by name. For a server it
// contains all of the cluster's private keys.
func Shared(dir string, to Recipient) (map[string][]byte, error) {
	names := shared(to)
	if to == ForServer {
		r, err := ReadRotation(dir)
		if err != nil {
			return nil, err
		}
		if r != nil {
			names = append(names, rotationFiles()...)
		}
	}
	return readFiles(dir, names)
}

// Place writes what Shared has returned on another machine, before its first Ensure or EnsurePeer. It refuses other
// files. What an earlier membership has left there goes: a rotation of then would put its CAs in the place of these,
// and its certificates are signed by them.
func Place(dir string, files map[string][]byte, to Recipient) error {
	for _, name := range shared(to) {
		if len(files[name]) == 0 {
			return fmt.Errorf("pki: the cluster's keys lack %s", name)
		}
	}
	all := shared(to)
	if to == ForServer {
		all = append(all, rotationFiles()...)
	}
	for name := range files {
		if !slices.Contains(all, name) {
			return fmt.Errorf("pki: the cluster's keys have an unknown file %q: upgrade kubelith here", name)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("pki: create directory: %w", err)
	}
	if to == ForServer {
		if err := forgetMembership(dir); err != nil {
			return err
		}
	}
	for _, name := range all {
		if files[name] == nil { // no rotation is under way
			continue
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
			return fmt.Errorf("pki: create directory: %w", err)
		}
		if err := atomicfile.Write(filepath.Join(dir, name), files[name]); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	return nil
}

// forgetMembership removes what Ensure makes again, and a rotation.
func forgetMembership(dir string) error {
	if err := endRotation(dir); err != nil {
		return err
	}
	for _, name := range []string{"apiserver", "apiserver-kubelet-client", "front-proxy-client", "kubelet-serving", "peer", "admin"} {
		if err := os.Remove(filepath.Join(dir, name+".crt")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("pki: %w", err)
		}
	}
	return nil
}

// ServerClient returns a certificate with which a server of the cluster proves to another one that it is the server
// with that name: names.ServerUserPrefix plus the name, in names.Servers. It is valid for ten minutes and stored
// nowhere: a server has the CA's key. The pool has the CAs of the API.
func ServerClient(dir, name string, now time.Time) (tls.Certificate, *x509.CertPool, error) {
	return serverClient(dir, clusterCA, name, now)
}

// FormerServerClient and NextServerClient are the same, signed by a CA from before or after a rotation: with them a
// server tries which of the two its API server accepts.
func FormerServerClient(dir, name string, now time.Time) (tls.Certificate, *x509.CertPool, error) {
	return serverClient(dir, filepath.Join(formerDir, clusterCA), name, now)
}

// NextServerClient is described at FormerServerClient.
func NextServerClient(dir, name string, now time.Time) (tls.Certificate, *x509.CertPool, error) {
	return serverClient(dir, filepath.Join(nextDir, clusterCA), name, now)
}

func serverClient(dir, by, name string, now time.Time) (tls.Certificate, *x509.CertPool, error) {
	s := &store{dir: dir, now: now}
	ca, err := s.authority(s.pair(by), "kubelith-cluster-ca")
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	if trust, err := os.ReadFile(filepath.Join(dir, ClusterTrustFile)); err == nil { // else Ensure has not run yet
		roots.AppendCertsFromPEM(trust)
	}
	subject := pkix.Name{CommonName: names.ServerUserPrefix + name, Organization: []string{names.Servers}}
	der, key, err := ca.client(subject, now, serverClientLife)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots, nil
}

const serverClientLife = 10 * time.Minute
