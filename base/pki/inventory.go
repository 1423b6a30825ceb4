package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	certutil "k8s.io/client-go/util/cert"
)

// Certificate is what an operator wants to know about a certificate.
type Certificate struct {
	Name    string   `json:"name"` // of its file, without the extension
	Use     string   `json:"use"`
	Subject string   `json:"subject"`          // common name: a user of the API, except for CAs and etcd
	Groups  []string `json:"groups,omitempty"` // of the user
	Names   []string `json:"names,omitempty"`  // DNS names and IP addresses that it serves
	Issuer  string   `json:"issuer"`           // common name; that of a CA is its own
	CA      bool     `json:"ca"`               // it signs others, and is not renewed by Kubelith
	// NotBefore and NotAfter bound its life.
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	File      string    `json:"file"`
}

// Parts of its life at which a certificate is due: a leaf has been renewed before, unless that failed again and again.
// Of a year they are 30 days, and of the ten years of a CA, which an operator must replace, one year.
const leafDue, caDue = 12, 10

// Due returns when a certificate that is still there needs an operator's attention.
func (c Certificate) Due() time.Time {
	life := c.NotAfter.Sub(c.NotBefore)
	if c.CA {
		return c.NotAfter.Add(-life / caDue)
	}
	return c.NotAfter.Add(-life / leafDue)
}

// Read returns the certificates of a PEM file: all CAs of a bundle, or the leaf without its chain. They have the name
// of the file, and this use.
func Read(path, use string) ([]Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	all, err := certutil.ParseCertsPEM(data)
	if err != nil {
		return nil, fmt.Errorf("pki: %s is damaged: %w", path, err)
	}
	if !all[0].IsCA {
		all = all[:1]
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	var out []Certificate
	for _, c := range all {
		out = append(out, describe(c, name, use, path))
	}
	return out, nil
}

func describe(c *x509.Certificate, name, use, path string) Certificate {
	out := Certificate{
		Name: name, Use: use, Subject: c.Subject.CommonName, Groups: c.Subject.Organization, Names: c.DNSNames,
		Issuer: c.Issuer.CommonName, CA: c.IsCA, NotBefore: c.NotBefore, NotAfter: c.NotAfter, File: path,
	}
	for _, ip := range c.IPAddresses {
		out.Names = append(out.Names, ip.String())
	}
	return out
}

// Inventory returns the certificates in the directory of Ensure, without writing anything. With an error, it returns
// those that can be read. It returns none when there is no such directory.
func Inventory(dir string) ([]Certificate, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []Certificate
	var errs []error
	has := func(name string) bool { return exists(filepath.Join(dir, name)) }
	witness := has("peer-ca.crt") && !has(ClusterCAFile) && !has(clusterCA+".key")
	known := map[string]bool{} // CAs, by their end and name: the kubelets' CA is in the trust file, too
	rotation, err := ReadRotation(dir)
	if err != nil {
		errs = append(errs, err)
	}
	for _, f := range []struct{ name, use string }{
		{"cluster-ca", "signs the API's certificate and those of its users"},
		{"kubelet-ca", "signs the kubelets' serving certificates"},
		{"front-proxy-ca", "signs front-proxy-client"},
		{"peer-ca", "signs the certificates between the servers' etcd"},
		{"apiserver", "serves the API"},
		{"apiserver-kubelet-client", "the API server calls kubelets"},
		{"front-proxy-client", "the API server calls aggregated API servers"},
		{"kubelet-serving", "serves the kubelet of this server"},
		{"peer", "etcd, to other servers"},
		{"admin", "the administrator's kubeconfig"},
		{"next/cluster-ca", "the next cluster-ca"},
		{"next/kubelet-ca", "the next kubelet-ca"},
		{"next/front-proxy-ca", "the next front-proxy-ca"},
		{"former/cluster-ca", "the former cluster-ca, still trusted"},
		{"former/kubelet-ca", "the former kubelet-ca, still trusted"},
		{"former/front-proxy-ca", "the former front-proxy-ca, still trusted"},
		{"kubelet-trust", "former CA of kubelets' serving certificates"},
	} {
		sub, _ := filepath.Split(f.name)
		if sub != "" && (rotation == nil || sub == formerDir+"/" && rotation.Phase == Drop) {
			continue
		}
		all, err := Read(filepath.Join(dir, f.name+".crt"), f.use)
		if witness && errors.Is(err, fs.ErrNotExist) {
			continue // it has none of the others
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, c := range all {
			id := c.Subject + c.NotAfter.String()
			if c.CA && known[id] {
				continue
			}
			known[id] = true
			c.Name = sub + c.Name
			out = append(out, c)
		}
	}
	return out, errors.Join(errs...)
}
