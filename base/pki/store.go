package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"kubelith.io/kubelith/base/atomicfile"
)

// store is the directory during one Ensure.
type store struct {
	dir     string
	now     time.Time
	life    time.Duration // of leaves; 0: leafLife
	files   atomicfile.Options
	changed []string
	exposed []string
}

func (s *store) pair(name string) Pair {
	return Pair{Cert: filepath.Join(s.dir, name+".crt"), Key: filepath.Join(s.dir, name+".key")}
}

func (s *store) write(path, kind string, ders ...[]byte) error {
	var text []byte
	for _, der := range ders {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	if err := atomicfile.WriteWith(path, text, s.files); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	s.changed = append(s.changed, filepath.Base(path))
	return nil
}

// key reads or generates a private key. remedy says what to do when the file is damaged.
func (s *store) key(path, remedy string) (crypto.Signer, error) {
	if err := s.conceal(path); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err == nil {
		key, err := parseKey(data)
		if err != nil {
			return nil, fmt.Errorf("pki: %s is damaged (%w): %s", path, err, remedy)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pki: read key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("pki: generate %s: %w", path, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("pki: encode %s: %w", path, err)
	}
	return key, s.write(path, "EC PRIVATE KEY", der)
}

// conceal removes other users' permissions from a key, and notes that they had them.
func (s *store) conceal(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return fmt.Errorf("pki: read key: %w", err)
	}
	s.exposed = append(s.exposed, path)
	return nil
}

// dropUnused removes the pairs that earlier releases created for TLS between etcd and its clients. etcd serves unix
// sockets only, and unused keys should not be kept.
func (s *store) dropUnused() error {
	for _, name := range []string{"etcd-ca", "etcd-server", "etcd-peer"} {
		p := s.pair(name)
		for _, path := range []string{p.Cert, p.Key} {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("pki: %w", err)
			}
		}
	}
	return nil
}

// load reads a pair. The certificate is nil when its file does not exist; the key is generated when neither exists.
func (s *store) load(p Pair, remedy string) (*x509.Certificate, crypto.Signer, error) {
	data, err := os.ReadFile(p.Cert)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := s.key(p.Key, remedy)
		return nil, key, err
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pki: read certificate: %w", err)
	}
	cert, err := parseCert(data)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %s is damaged (%w): %s", p.Cert, err, remedy)
	}
	if _, err := os.Stat(p.Key); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("pki: %s is missing but its certificate %s exists: %s", p.Key, filepath.Base(p.Cert), remedy)
	}
	key, err := s.key(p.Key, remedy)
	if err != nil {
		return nil, nil, err
	}
	if !samePublicKey(cert.PublicKey, key.Public()) {
		return nil, nil, fmt.Errorf("pki: %s does not belong to the key %s: %s", p.Cert, filepath.Base(p.Key), remedy)
	}
	return cert, key, nil
}

// authority is a CA that can sign.
type authority struct {
	path string
	cert *x509.Certificate
	key  crypto.Signer
}

// client signs the certificate of a client for a new key; it ends with the CA at the latest. Neither is stored.
func (ca *authority) client(subject pkix.Name, now time.Time, life time.Duration) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, fmt.Errorf("pki: generate a key: %w", err)
	}
	der, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{
		Subject:               subject,
		NotBefore:             later(now.Add(-clockSkew), ca.cert.NotBefore),
		NotAfter:              earlier(now.Add(life), ca.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: sign a certificate: %w", err)
	}
	return der, key, nil
}

func (s *store) authority(p Pair, cn string) (*authority, error) {
	cert, key, err := s.load(p, "restore both files of the pair from a backup")
	if err != nil {
		return nil, err
	}
	if cert == nil {
		// With an old key (an interrupted first start), everything that it signed stays valid: the new certificate has
		// the same subject and key identifier.
		template := caTemplate(cn, s.now)
		cert, err = s.sign(p.Cert, template, template, key, key)
		if err != nil {
			return nil, err
		}
	}
	switch {
	case !cert.IsCA:
		return nil, fmt.Errorf("pki: %s is not the certificate of a CA: restore both files of the pair from a backup", p.Cert)
	case s.now.Before(cert.NotBefore):
		return nil, fmt.Errorf("pki: the clock says %s, but the CA %s is valid from %s: set the clock", stamp(s.now), p.Cert, stamp(cert.NotBefore))
	case s.now.After(cert.NotAfter):
		return nil, fmt.Errorf("pki: the CA %s expired at %s (the clock says %s): set the clock if it is wrong, else replace the CA",
			p.Cert, stamp(cert.NotAfter), stamp(s.now))
	}
	return &authority{path: p.Cert, cert: cert, key: key}, nil
}

// leaf is a certificate that should exist.
type leaf struct {
	pair  Pair
	ca    *authority
	cn    string
	org   []string
	usage []x509.ExtKeyUsage
	names altNames
	// others are CAs whose leaf is replaced: those of a rotation.
	others []*x509.Certificate
}

// replaceable reports whether the leaf may be replaced, which ca has not signed.
func (l leaf) replaceable(cert *x509.Certificate) bool {
	return slices.ContainsFunc(l.others, func(ca *x509.Certificate) bool { return cert.CheckSignatureFrom(ca) == nil })
}

func (s *store) ensureLeaf(l leaf) error {
	remedy := fmt.Sprintf("restore it, or remove %s and %s to generate both again", filepath.Base(l.pair.Cert), filepath.Base(l.pair.Key))
	cert, key, err := s.load(l.pair, remedy)
	if err != nil {
		return err
	}
	if cert != nil {
		err := cert.CheckSignatureFrom(l.ca.cert)
		if err != nil && !l.replaceable(cert) {
			return fmt.Errorf("pki: %s was not signed by %s (%w): %s", l.pair.Cert, filepath.Base(l.ca.path), err, remedy)
		}
		if err == nil && s.serves(cert, l) {
			return nil
		}
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: l.cn, Organization: l.org},
		NotBefore:             later(s.now.Add(-min(clockSkew, s.leafLife()/10)), l.ca.cert.NotBefore),
		NotAfter:              earlier(s.now.Add(s.leafLife()), l.ca.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           l.usage,
		BasicConstraintsValid: true,
		DNSNames:              l.names.dns,
		IPAddresses:           l.names.ips,
	}
	_, err = s.sign(l.pair.Cert, template, l.ca.cert, key, l.ca.key)
	return err
}

// leafLife is how long a new leaf is valid.
func (s *store) leafLife() time.Duration {
	if s.life > 0 {
		return s.life
	}
	return leafLife
}

// renewBefore is how long before its end a leaf is renewed.
func (s *store) renewBefore() time.Duration {
	if s.life > 0 {
		return s.life / 3
	}
	return renewBefore
}

// serves reports whether cert can stay as it is. One from the future, created while the clock was wrong, cannot. One
// that ends with its CA can: a new one would not last longer.
func (s *store) serves(cert *x509.Certificate, l leaf) bool {
	return !s.now.Before(cert.NotBefore) &&
		(s.now.Add(s.renewBefore()).Before(cert.NotAfter) || !cert.NotAfter.Before(l.ca.cert.NotAfter)) &&
		cert.Subject.CommonName == l.cn &&
		slices.Equal(cert.Subject.Organization, l.org) &&
		l.names.coveredBy(cert)
}

// sign creates a certificate for key and writes it.
func (s *store) sign(path string, template, parent *x509.Certificate, key, parentKey crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, fmt.Errorf("pki: sign %s: %w", path, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("pki: read back %s: %w", path, err)
	}
	return cert, s.write(path, "CERTIFICATE", der)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
