package join

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

// store is what an agent keeps in its data directory:
//
//	agent/identity.key             key by which the server recognises this machine
//	agent/cluster.json             the cluster's settings
//	agent/servers.json             addresses of the servers
//	agent/pki/cluster-ca.crt       the cluster's CA; two while it is replaced
//	agent/former-cas.json          the hashes of CAs that were replaced: a token of then may still start the agent
//	agent/pki/client-current.pem   the node's certificate and its key; written last: with it the machine has joined
type store struct{ dataDir string }

func (s store) path(elements ...string) string {
	return filepath.Join(append([]string{s.dataDir, "agent"}, elements...)...)
}

func (s store) identity() string   { return s.path("identity.key") }
func (s store) settings() string   { return s.path(names.ClusterInfoKey) }
func (s store) servers() string    { return s.path("servers.json") }
func (s store) formerCAs() string  { return s.path("former-cas.json") }
func (s store) pki() string        { return s.path("pki") }
func (s store) ca() string         { return s.path("pki", pki.ClusterCAFile) }
func (s store) clientCert() string { return s.path("pki", "client-current.pem") }

// kubeletCert is the kubelet's serving certificate; the kubelet names and renews it.
func (s store) kubeletCert() string { return s.path("pki", "kubelet-server-current.pem") }

func (s store) exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// membership is what an earlier join stored.
type membership struct {
	cas      []*x509.Certificate
	former   []string         // see formerCAs
	cert     *tls.Certificate // perhaps expired
	settings []byte
	servers  []string
}

// load returns nil when this machine has not joined.
func (s store) load() (*membership, error) {
	if !s.exists(s.clientCert()) {
		// Upstream removes the link to the old certificate before it renames the new one: a machine that was killed in
		// between has joined.
		if err := os.Rename(s.path("pki", "client-updated.pem"), s.clientCert()); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
	}
	m := &membership{}
	damaged := func(err error) error {
		return fmt.Errorf("the data of an earlier join is damaged (%w): restore %s, or run kubelith reset --data and join again", err, s.path())
	}
	pair, err := tls.LoadX509KeyPair(s.clientCert(), s.clientCert())
	if err != nil {
		return nil, damaged(err)
	}
	if pair.Leaf == nil { // with GODEBUG=x509keypairleaf=0
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, damaged(err)
		}
	}
	m.cert = &pair
	if m.cas, err = cert.CertsFromFile(s.ca()); err != nil {
		return nil, damaged(err)
	}
	if m.settings, err = os.ReadFile(s.settings()); err != nil {
		return nil, damaged(err)
	}
	m.former = s.former()
	// Without the stored servers there is still --server.
	if text, err := os.ReadFile(s.servers()); err == nil {
		_ = json.Unmarshal(text, &m.servers)
	}
	return m, nil
}

// former returns the hashes of CAs that were replaced.
func (s store) former() (hashes []string) {
	if text, err := os.ReadFile(s.formerCAs()); err == nil {
		_ = json.Unmarshal(text, &hashes) // a damaged file is as none: a token of then is refused
	}
	return hashes
}

// trust stores other CAs of the API, and remembers those before.
func (s store) trust(pem []byte, before []*x509.Certificate) error {
	after, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return err
	}
	known := s.former()
	for _, ca := range before {
		if hash := jointoken.SPKIHash(ca); !slices.ContainsFunc(after, ca.Equal) && !slices.Contains(known, hash) {
			known = append(known, hash)
		}
	}
	text, err := json.Marshal(known)
	if err != nil {
		return err
	}
	if err := s.replace(s.formerCAs(), append(text, '\n')); err != nil {
		return err
	}
	return s.replace(s.ca(), pem)
}

// membershipPEM is the result of a join.
type membershipPEM struct {
	cas       []*x509.Certificate
	settings  []byte
	cert, key []byte
}

// save stores it, the certificate last, and returns the certificate.
func (s store) save(made *journal, m membershipPEM) (*tls.Certificate, error) {
	var cas []byte
	for _, ca := range m.cas {
		cas = append(cas, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})...)
	}
	for _, file := range []struct {
		path string
		data []byte
	}{{s.ca(), cas}, {s.settings(), m.settings}} {
		if err := made.write(file.path, file.data); err != nil {
			return nil, err
		}
	}
	joined := s.exists(s.clientCert())
	files, err := s.certificates(func(*tls.Certificate) {})
	if err != nil {
		return nil, err
	}
	c, err := files.Update(m.cert, m.key)
	if err != nil && !joined {
		half, _ := filepath.Glob(s.path("pki", "client-*")) // the pattern is valid
		for _, path := range half {
			os.Remove(path)
		}
	}
	return c, err
}

// replace writes a file of a joined node unless it has that content.
func (s store) replace(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	return atomicfile.Write(path, data)
}

// certificates are upstream's files, a link "current" to one with a date in its name. use is called with each new one.
func (s store) certificates(use func(*tls.Certificate)) (certificate.Store, error) {
	files, err := certificate.NewFileStoreWithLogger(klog.Background().V(3), "client", s.pki(), s.pki(), "", "")
	if err != nil {
		return nil, fmt.Errorf("the node's certificate: %w", err)
	}
	return certificateStore{files, use}, nil
}

// certificateStore reports every new certificate, and removes the old ones, which upstream leaves behind.
type certificateStore struct {
	certificate.FileStore
	use func(*tls.Certificate)
}

// Update implements certificate.Store.
func (s certificateStore) Update(certPEM, keyPEM []byte) (*tls.Certificate, error) {
	c, err := s.FileStore.Update(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	s.use(c)
	if current, err := filepath.EvalSymlinks(s.CurrentPath()); err == nil {
		old, _ := filepath.Glob(filepath.Join(filepath.Dir(s.CurrentPath()), "client-2*.pem")) // the pattern is valid
		for _, path := range old {
			if filepath.Base(path) != filepath.Base(current) {
				os.Remove(path)
			}
		}
	}
	return c, nil
}

// Machine identifies this machine by its key, as the server does, in the length of a label. It is empty if there is no
// key.
func Machine(dataDir string) string {
	text, err := os.ReadFile(store{dataDir}.identity())
	if err != nil {
		return ""
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(text)
	key, ok := parsed.(crypto.Signer)
	if err != nil || !ok {
		return ""
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(public))[:validation.LabelValueMaxLength]
}

// journal records created files, so that they can be removed.
type journal struct{ paths []string }

// write creates or replaces a file, and its parent directories.
func (j *journal) write(path string, data []byte) error {
	if err := j.mkdir(filepath.Dir(path)); err != nil {
		return err
	}
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		j.paths = append(j.paths, path)
	}
	return atomicfile.Write(path, data)
}

// keep excludes a file from undo.
func (j *journal) keep(path string) {
	j.paths = slices.DeleteFunc(j.paths, func(p string) bool { return p == path })
}

func (j *journal) mkdir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := j.mkdir(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("create the agent's directory: %w", err)
	}
	j.paths = append(j.paths, dir)
	return nil
}

// undo removes what was created, the last first; directories with other files stay.
func (j *journal) undo() {
	for _, path := range slices.Backward(j.paths) {
		os.Remove(path)
	}
}
